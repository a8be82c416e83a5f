"""
What the build of the package adds: the README as a package index can show it, and the broker's compiled loops.

A page of an index has none of what stands beside the README. Its links and pictures lead to the public repository,
`home` of `[tool.hatch.metadata.hooks.custom]`. As long as that names none, a link is its words and a picture what it
shows.
"""

import os
import re
import shlex
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

SOURCES = (Path("log_broker", "records", "_walk.c"), Path("log_broker", "server", "process", "_disk_threads.c"))
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


class CompileHook(BuildHookInterface[Any]):
    """
    Compiles `SOURCES` where there are a C compiler and Python's headers. Without them, and with FLUVIAL_PURE=1, the
    wheel is one for every platform, whose Python does the same.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._folder = tempfile.TemporaryDirectory(prefix="fluvial-build-")

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Put what was compiled into the wheel, or beside its source where that is what is installed."""
        if os.environ.get("FLUVIAL_PURE") == "1":
            return
        for source in SOURCES:
            folder = Path(self.root, source).parent if version == "editable" else Path(self._folder.name)
            compiled = compile_source(Path(self.root), source, folder)
            if compiled is None:
                self.app.display_warning(f"{source} is not compiled: Python will do its work")
            elif version != "editable":
                build_data["force_include"][str(compiled)] = str(compiled_name(source))
                build_data["pure_python"] = False
                build_data["tag"] = f"cp311-abi3-{re.sub('[-.]', '_', sysconfig.get_platform())}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what the wheel has a copy of."""
        self._folder.cleanup()


def compiled_name(source: Path) -> Path:
    """Return where in the package stands what a source is compiled to."""
    return source.with_suffix(".abi3.so")


def compile_source(root: Path, source: Path, folder: Path) -> Path | None:
    """Compile a source of the tree at `root` into `folder`; None where that cannot be done here."""
    headers = sysconfig.get_path("include")
    if not Path(headers, "Python.h").is_file():
        return None
    compiled = folder / compiled_name(source).name
    # Written aside first: another process may have the one before loaded.
    fresh = compiled.with_suffix(f".{os.getpid()}")
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    command = [*compiler, "-O2", "-fPIC", "-shared", "-pthread", f"-I{headers}", "-o", str(fresh), str(root / source)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        fresh.replace(compiled)
    except (OSError, subprocess.SubprocessError):
        return None
    return compiled
