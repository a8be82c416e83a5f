"""
A new project, copied from the files in `project-template`.

The template is a project itself, named `my_platform`: that word becomes the new project's name wherever it stands.
"""

import keyword
import re
from importlib.util import find_spec
from pathlib import Path

from fluvial.errors import FluvialError

TEMPLATE = Path(__file__).with_name("project-template")
TEMPLATE_NAME = "my_platform"

_RENAMED = {"gitignore": ".gitignore"}
"""A file of its real name would work on the template itself."""


class ScaffoldError(FluvialError):
    """A project cannot be made there, or not under that name."""


def create_project(directory: Path) -> list[Path]:
    """
    Write a project into `directory`, whose last part is its name; return the files, relative to it.

    Raises ScaffoldError for a name that no package can have and for a folder that holds something; OSError for one that
    cannot be written.
    """
    name = directory.absolute().name
    _check_name(name)
    if directory.exists() and not directory.is_dir():
        raise ScaffoldError(f"{directory} is a file: name a new folder, or an empty one")
    if directory.is_dir() and any(directory.iterdir()):
        raise ScaffoldError(f"{directory} is not empty: name a new folder, or an empty one")
    written = []
    for source in sorted(TEMPLATE.rglob("*")):
        if source.is_dir() or "__pycache__" in source.parts:
            continue
        relative = source.relative_to(TEMPLATE)
        place = Path(*(part.replace(TEMPLATE_NAME, name) for part in relative.parts))
        place = place.with_name(_RENAMED.get(place.name, place.name))
        target = directory / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source.read_text(encoding="utf-8").replace(TEMPLATE_NAME, name), encoding="utf-8")
        written.append(place)
    return written


def _check_name(name: str) -> None:
    if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name):
        proposed = re.sub(r"\W+", "_", name.strip(), flags=re.ASCII).strip("_").lower()
        usable = proposed.isidentifier() and not keyword.iskeyword(proposed)
        repair = f", such as {proposed}" if usable else ", such as my_platform"
        raise ScaffoldError(
            f"{name!r} is no name for a Python package: use letters, digits and underscores, no digit first{repair}"
        )
    if name in {"schemas", "tests", "produce"} or find_spec(name) is not None:
        raise ScaffoldError(f"{name!r} is taken by another module that is imported here: choose another name")
