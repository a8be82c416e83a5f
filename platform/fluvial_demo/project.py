"""
The worked example: the project whose tables the demo builds, and which is copied to where it is run.

There is one source of it, the repository's `pipelines/`, `schemas/` and `dagster_project/`; the wheel holds a copy of
those files in `fluvial_demo/project`.
"""

import importlib
import shutil
from pathlib import Path

from fluvial.errors import FluvialError

PARTS = (
    "pipelines/__init__.py",
    "pipelines/flights",
    "schemas/aircraft_registry",
    "schemas/airline_operations",
    "schemas/weather_service",
    "dagster_project/__init__.py",
    "dagster_project/definitions.py",
    "dagster_project/resources.py",
    "dagster_project/defs",
)
"""What the project consists of, beside a `pyproject.toml` that names its definitions to Dagster."""

DECLARATIONS = Path("pipelines", "flights", "declarations.py")

_PACKAGED = Path(__file__).with_name("project")
SOURCE = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).parents[2]
"""The folder that holds the parts: in the wheel, or a checkout."""

CONTRACTS = SOURCE / "schemas"

_PYPROJECT = Path(__file__).with_name("project.toml")
_PYPROJECT_NAME = "pyproject.toml"


class ProjectError(FluvialError):
    """The folder holds another project, whose files the demo leaves alone."""


def ensure_project(folder: Path) -> list[str]:
    """
    Write the project into `folder` unless it is there; return the names of what was written, relative to it.

    Raises ProjectError where one of the names is taken by something else.
    """
    if (folder / DECLARATIONS).is_file():
        return []
    names = sorted({Path(part).parts[0] for part in PARTS} | {_PYPROJECT_NAME})
    taken = [name for name in names if (folder / name).exists()]
    if taken:
        raise ProjectError(
            f"the demo writes its project where it is run, and {folder} has one of its own ({', '.join(taken)}): "
            "run it in a new folder, mkdir flights && cd flights"
        )
    for part in PARTS:
        source, target = SOURCE / part, folder / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, target)
    shutil.copyfile(_PYPROJECT, folder / _PYPROJECT_NAME)
    importlib.invalidate_caches()
    return names
