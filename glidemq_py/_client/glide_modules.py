"""Import valkey-glide without deprecation warnings in programs that do not use its deprecated modules.

GLIDE registers its old module names (``glide.config`` and others) as modules that warn at any attribute access. Tools
that inspect every loaded module (``inspect.getmodule``, ``unittest.assertWarns``, Hypothesis, reloaders) read
``__file__`` and other special attributes, and so cause a DeprecationWarning, an error under ``-W error``, that the
program's own code did not cause. Here special attributes raise AttributeError; importing a name from a deprecated
module warns as before.
"""

from __future__ import annotations

from typing import Any

import glide
import glide_sync

__all__ = ["glide", "glide_sync"]


def _ignore_special_attributes(legacy: type[Any] | None) -> None:
    warn = getattr(legacy, "__getattr__", None)
    if legacy is None or warn is None:  # a version of GLIDE without these modules
        return

    def get(module: Any, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        return warn(module, name)

    legacy.__getattr__ = get


_ignore_special_attributes(getattr(glide, "_LegacyModule", None))
