"""The suites that a package declares, found in its modules."""

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from fluvial.modules import look_in_current_folder
from fluvial.quality.suite import Suite, SuiteError


def suites_in(module: str) -> list[Suite]:
    """
    Every suite that stands in a module, or in the modules of its package that it imports, alone or in a list.

    The current folder is looked in first, as `python -m` does. Raises SuiteError for a module that cannot be imported.
    """
    look_in_current_folder()
    try:
        importlib.import_module(module)
    except Exception as error:
        raise SuiteError(f"{module} cannot be imported: {type(error).__name__}: {error}") from error
    package = module.partition(".")[0]
    found: dict[tuple[str, str], Suite] = {}
    for name, loaded in sorted(sys.modules.items()):
        if loaded is not None and (name == package or name.startswith(f"{package}.")):
            found |= {(suite.table, suite.name): suite for suite in _suites_of(loaded)}
    return list(found.values())


def _suites_of(module: ModuleType) -> Iterator[Suite]:
    for value in vars(module).values():
        # A tuple of another type, such as dagster.Definitions, may refuse to be gone through.
        held: Any = value if type(value) in (list, tuple) else [value]
        yield from (each for each in held if isinstance(each, Suite))
