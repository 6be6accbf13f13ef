"""The build hook of hatchling: the README of a package, whose links work outside the repository."""

import re
from pathlib import Path
from typing import Any

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
