"""
Where a project keeps its Dagster definitions.

As Dagster's own tools do, the module's name is read from `pyproject.toml` in the working directory. A project that
has none gets the assets of its declarations.
"""

import importlib
import tomllib
from pathlib import Path

import dagster as dg

from fluvial.config import Settings, load_settings
from fluvial.errors import FluvialError
from fluvial.modules import look_in_current_folder
from fluvial.orchestration.assets.assets import assets_for
from fluvial.orchestration.checks.checks import checks_for, contract_suites
from fluvial.orchestration.run.spark_resource import SparkResource
from fluvial.orchestration.sensors.sensors import offsets_sensor
from fluvial.registry.contracts import load_contracts
from fluvial.tables.declare.project import load_project

DEFAULT_MODULE = "fluvial.orchestration.run.default_location"
SCHEMAS = "schemas"


class CodeLocationError(FluvialError):
    """The module that `pyproject.toml` names does not hold Dagster definitions."""


def definitions_module(directory: Path) -> str:
    """Return the name of the module that holds the definitions of the project in `directory`."""
    try:
        tools = tomllib.loads((directory / "pyproject.toml").read_text()).get("tool", {})
    except FileNotFoundError:
        return DEFAULT_MODULE
    except tomllib.TOMLDecodeError as error:
        raise CodeLocationError(f"{directory / 'pyproject.toml'}: {error}") from error
    by_dg = tools.get("dg", {}).get("project", {}).get("code_location_target_module")
    return by_dg or tools.get("dagster", {}).get("module_name") or DEFAULT_MODULE


def load_definitions(module: str) -> dg.Definitions:
    """Import the definitions that `module` holds; raises CodeLocationError when it has none."""
    look_in_current_folder()
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise CodeLocationError(f"the Dagster definitions module {module!r} cannot be imported: {error}") from error
    for value in vars(found).values():
        if isinstance(value, dg.Definitions):
            return value
    raise CodeLocationError(f"the module {module!r} holds no dagster.Definitions")


def definitions_for(settings: Settings) -> dg.Definitions:
    """
    Return definitions with the tables that the project's package declares, for a project without Dagster code.

    Contracts in `schemas/` of the working directory give owners, columns and checks, as they do in a project's own.
    """
    declarations = load_project(settings.project)
    contracts = load_contracts(SCHEMAS) if Path(SCHEMAS).is_dir() else []
    return dg.Definitions(
        assets=assets_for(declarations, contracts=contracts),
        asset_checks=checks_for(contract_suites(declarations, contracts)),
        sensors=[offsets_sensor(declarations)],
        resources={"spark": SparkResource()},
        executor=dg.in_process_executor,
    )


def definitions_of(settings: Settings) -> dg.Definitions:
    """
    Return the definitions of the project in the working directory, or of another if `settings` name one.

    The directory's Dagster code is about the directory's own project: it knows nothing of one named by a flag.
    """
    module = definitions_module(Path.cwd())
    if module == DEFAULT_MODULE or settings.project != load_settings().project:
        return definitions_for(settings)
    return load_definitions(module)
