"""
The README as a package index can show it: it has the text of a page and none of what stands beside it.

Links and pictures lead to the public repository, `home` of `[tool.hatch.metadata.hooks.custom]`. As long as that names
none, a link is its words and a picture what it shows.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_REFERENCE = re.compile(r"(!?)\[([^\]]+)\]\((?!https?:)([^)\s]*)\)")


def standing_alone(text: str, home: str = "", version: str = "") -> str:
    """
    Return Markdown whose relative links and pictures lead to a version of the repository at `home`.

    Without a `home` they are the words that stand for them. A link within the page is left as it is.
    """

    def replaced(found: re.Match[str]) -> str:
        picture, words, target = found.groups()
        if target.startswith("#"):
            return found[0]
        if not home:
            return f"*{' '.join(words.split())}*" if picture else words
        kind = "raw" if picture else "blob"
        return f"{picture}[{words}]({home.rstrip('/')}/{kind}/v{version}/{target})"

    return _REFERENCE.sub(replaced, text)


class ReadmeHook(MetadataHookInterface):
    """Gives the package its long description, and its URLs where there is a public repository."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set `readme` and `urls`, which `pyproject.toml` names as dynamic."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        home, version = self.config.get("home", "").rstrip("/"), metadata["version"]
        metadata["readme"] = {"content-type": "text/markdown", "text": standing_alone(text, home, version)}
        if home:
            blob = f"{home}/blob/v{version}"
            metadata["urls"] = {
                "Source": home,
                "Documentation": f"{blob}/docs/README.md",
                "Changelog": f"{blob}/CHANGELOG.md",
                "Issues": f"{home}/issues",
            }
