"""The build hooks of hatchling: the README of a package, whose links work outside the repository; blocking classes."""

import re
import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s]+)\)")


class ReadmeHook(MetadataHookInterface):
    """Sets the readme to README.md with links into the repository, at the tag of this version."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme; the address of the repository is the homepage in pyproject.toml."""
        base = f"{metadata['urls']['Homepage']}/blob/v{metadata['version']}"
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        absolute = RELATIVE_LINK.sub(lambda link: f"]({base}/{link[1]})", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute}


class BlockingClassesHook(BuildHookInterface[Any]):
    """Writes the blocking classes before a wheel, an sdist or an editable install is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the files of tools/generate_sync.py; `artifacts` in pyproject.toml adds them to the package."""
        runpy.run_path(str(Path(self.root) / "tools" / "generate_sync.py"))["write_twins"]()
