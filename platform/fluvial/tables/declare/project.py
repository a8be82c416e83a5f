"""
A project's declarations, found in its modules.
"""

import importlib
import pkgutil
from types import ModuleType

from fluvial.extras import MissingExtraError, needed
from fluvial.modules import look_in_current_folder
from fluvial.tables.declare.declarations import (
    DECLARATION_TYPES,
    TOPICS,
    Declaration,
    DeclarationError,
    Pipeline,
    Publication,
)


class NoProjectError(DeclarationError):
    """
    There is no module of the project's name.
    """


def load_project(module_name: str) -> dict[str, Declaration]:
    """
    Every declaration in a module or in all modules of a package, by table name; inputs stand before what reads them.

    The current folder is looked in first, as `python -m` does. Raises :class:`DeclarationError` when the project
    cannot be imported, two declarations share a table, or pipelines read each other in a circle.
    """
    look_in_current_folder()
    found: dict[str, Declaration] = {}
    places: dict[str, str] = {}
    for module in _modules(module_name):
        for attribute, value in vars(module).items():
            if not isinstance(value, DECLARATION_TYPES):
                continue
            known = found.get(value.table)
            # A declaration that another module imports is the same object, not a second one.
            if known is not None and known is not value and known != value:
                raise DeclarationError(
                    f"{value.table} is declared twice, in {places[value.table]} and in {module.__name__}.{attribute}: "
                    "give one of them another name"
                )
            if known is None:
                found[value.table] = value
                places[value.table] = f"{module.__name__}.{attribute}"
    return _in_order(found)


def _modules(module_name: str) -> list[ModuleType]:
    root = _import(module_name)
    modules = [root]
    if hasattr(root, "__path__"):
        names = sorted(info.name for info in pkgutil.walk_packages(root.__path__, f"{module_name}."))
        modules += [_import(name) for name in names if not name.endswith(".__main__")]
    return modules


def _import(name: str) -> ModuleType:
    try:
        with needed():
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and name.startswith(error.name):
            raise NoProjectError(
                f"there is no project module {name}: run from the project's folder, or set `project` in fluvial.toml"
            ) from error
        raise DeclarationError(f"{name} cannot be imported: it needs {error.name}, which is not installed") from error
    except MissingExtraError as error:
        raise DeclarationError(f"{name} cannot be imported: {error}") from error
    except DeclarationError:
        raise
    except Exception as error:
        raise DeclarationError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error


def _in_order(found: dict[str, Declaration]) -> dict[str, Declaration]:
    """The declarations with each after what it reads, be it a table or a topic that another one is published to."""
    ordered: dict[str, Declaration] = {}

    def add(table: str, path: tuple[str, ...]) -> None:
        if table in ordered or table not in found:
            return
        if table in path:
            circle = " -> ".join([*path[path.index(table) :], table])
            raise DeclarationError(f"these read each other in a circle: {circle}")
        declaration = found[table]
        for source in _sources(declaration):
            add(source, (*path, table))
        ordered[table] = declaration

    for table in sorted(found):
        add(table, ())
    return ordered


def _sources(declaration: Declaration) -> tuple[str, ...]:
    if isinstance(declaration, Pipeline | Publication):
        return declaration.inputs
    return (f"{TOPICS}.{declaration.topic}",)
