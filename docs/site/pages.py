"""What mkdocs calls: the site's pages are the repository's, where they lie, so that a link serves readers of both."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(<?([^)\s>#]+)")
A_PROJECTS_OWN = "platform/fluvial/scaffold/"


def on_config(config: Any) -> Any:
    """Say the version on every page, list the decisions, and name headings as the repository's host does."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    config.copyright = f"fluvial {version}"
    config.mdx_configs["toc"]["slugify"] = slug
    (section,) = (each for each in config.nav if "Decisions" in each)
    section["Decisions"] = sorted(name for name in _committed() if name.startswith("docs/decisions/"))
    return config


def on_files(files: Files, config: Any) -> Files:
    """Return the pages, and the files that they link to; files of the theme stay."""
    kept = [each for each in files if each.src_dir != config.docs_dir]
    committed = _committed()
    linked: set[str] = set()
    for page in committed:
        for target in LINK.findall((ROOT / page).read_text(encoding="utf-8")):
            place = (ROOT / page).parent.joinpath(target).resolve()
            if ":" not in target and place.is_file():
                linked.add(str(place.relative_to(ROOT)))
    wanted = sorted(linked.union(committed))
    return Files([*kept, *(File(name, str(ROOT), config.site_dir, config.use_directory_urls) for name in wanted)])


def slug(heading: str, separator: str) -> str:
    """Return the fragment name of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def _committed() -> list[str]:
    """The pages that are committed or about to be."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return [name for name in listed if (ROOT / name).is_file() and not name.startswith(A_PROJECTS_OWN)]
