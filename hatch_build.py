"""The README as a package index can show it: it has the text of a page and none of what stands beside it."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_DIAGRAM = re.compile(r"^```mermaid\n.*?^```\n+", re.MULTILINE | re.DOTALL)
_PICTURE = re.compile(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n+", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]*\)")


def standing_alone(text: str) -> str:
    """Return Markdown without diagrams and pictures, and with the words alone of a link into the repository."""
    return _LINK.sub(r"\1", _PICTURE.sub("", _DIAGRAM.sub("", text)))


class ReadmeHook(MetadataHookInterface):
    """Gives the package its long description."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set `readme`, which `pyproject.toml` names as dynamic."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": standing_alone(text)}
