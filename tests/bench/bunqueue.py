"""The npm packages `bunqueue` and `bun`, installed once into the cache of the benchmarks.

`GLIDEMQ_BUNQUEUE_MODULES`, a folder with both packages, replaces the installation.
"""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bench.install import PeerMissingError, npm_modules

VERSION: Final = "2.9.5"
BUN_VERSION: Final = "1.4.4"
_MACHINES: Final = {"x86_64": "x64", "aarch64": "aarch64"}


@dataclass(frozen=True, slots=True)
class BunqueuePackages:
    """The installed packages.

    Attributes:
        modules: Their folder.
    """

    modules: Path

    @property
    def bun(self) -> Path:
        """The executable of bun."""
        return next((self.modules / "@oven").glob("bun-*/bin/bun"))

    @property
    def client(self) -> Path:
        """The module of the client."""
        return self.modules / "bunqueue" / "dist" / "client" / "index.js"

    @property
    def server(self) -> Path:
        """The command line of bunqueue."""
        return self.modules / "bunqueue" / "dist" / "cli" / "index.js"


def find_bunqueue() -> BunqueuePackages:
    """Return the packages, installed if they were not.

    Raises:
        PeerMissingError: If they cannot be installed here.
    """
    named = os.environ.get("GLIDEMQ_BUNQUEUE_MODULES")
    if named:
        return BunqueuePackages(Path(named))
    machine = _MACHINES.get(platform.machine())
    if sys.platform != "linux" or machine is None:
        raise PeerMissingError("bunqueue: bun is not installed on this platform")
    try:
        return BunqueuePackages(npm_modules(f"bunqueue@{VERSION}", f"@oven/bun-linux-{machine}@{BUN_VERSION}"))
    except PeerMissingError as error:
        raise PeerMissingError(f"bunqueue: {error}") from None
