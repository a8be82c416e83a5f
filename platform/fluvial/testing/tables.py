"""
The tables of a project, brought up to date in this process: what `fluvial run` does, without Dagster around it.
"""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from fluvial.errors import FluvialError
from fluvial.tables import Declaration
from fluvial.tables.declare.project import load_project

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fluvial.quality import Outcome, Suite
    from fluvial.tables.plan.result import RunResult
    from fluvial.testing.embedded import EmbeddedPlatform

Project = str | Mapping[str, Declaration] | Iterable[Declaration]


class UnknownTableError(FluvialError):
    """A test asks for a table that was not run."""


class Tables(Mapping[str, "DataFrame"]):
    """The tables of a run by name, such as `state.customers`; `results` says what the run did to each."""

    def __init__(self, spark: "SparkSession", warehouse: str, results: Mapping[str, "RunResult"]) -> None:
        self.results = results
        self._spark = spark
        self._warehouse = warehouse

    def __getitem__(self, table: str) -> "DataFrame":
        return self._spark.read.format("delta").load(self._path(table))

    def __iter__(self) -> Iterator[str]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def check(self, suite: "Suite") -> "Outcome":
        """Evaluate a suite of expectations on its table."""
        from fluvial.delta.log import TableLog
        from fluvial.quality import check_table

        return check_table(self._spark, TableLog(self._spark, self._path(suite.table)), suite).outcome

    def _path(self, table: str) -> str:
        from fluvial.spark.warehouse import Warehouse

        database, _, _ = table.partition(".")
        # A quarantine table is there once a record went to it, and no declaration names it.
        if table not in self.results and database != "quarantine":
            raise UnknownTableError(_unknown(table, self.results))
        return Warehouse.at(self._warehouse).path(table)


def run_tables(
    project: Project, *only: str, platform: "EmbeddedPlatform", spark: "SparkSession", warehouse: Path | str
) -> Tables:
    """
    Bring the declared tables of a project up to date, inputs before what reads them; return them.

    `project` is the module of the declarations, or the declarations; `only` names some of its tables. Called again on
    the same warehouse it takes in what was sent since. Raises what a run raises: a FluvialError of one clear line.
    """
    from fluvial.tables.drive.runner import materialize

    declared = _declared(project)
    for table in only:
        if table not in declared:
            raise UnknownTableError(_unknown(table, declared))
    settings = platform.settings(warehouse)
    results = {
        table: materialize(declaration, settings, spark)
        for table, declaration in declared.items()
        if not only or table in only
    }
    return Tables(spark, settings.warehouse, results)


def _declared(project: Project) -> Mapping[str, Declaration]:
    if isinstance(project, str):
        return load_project(project)
    if isinstance(project, Mapping):
        return project
    return {declaration.table: declaration for declaration in project}


def _unknown(table: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = get_close_matches(table, names, n=1)
    return f"no table {table} was run; " + (f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}")
