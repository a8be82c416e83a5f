"""
Registering what runs leave in a catalog. A catalog that takes nothing fails no run and delays none for long.

What a run could not register is tried again after a minute while the process lives, and at the next run.
"""

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fluvial.catalog.entry import entry_of
from fluvial.catalog.errors import CatalogError
from fluvial.catalog.settings import CatalogSettings
from fluvial.catalog.turns import Catalog, InTurn
from fluvial.delta.log import TableLog
from fluvial.errors import FluvialError
from fluvial.spark.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fluvial.config import Settings
    from fluvial.tables import Declaration
    from fluvial.tables.plan.result import RunResult

_log = logging.getLogger(__name__)

RETRY_SECONDS = 60.0
REPAIR = "the next run tries again, and so does `fluvial table register`"


def open_catalog(settings: CatalogSettings, data_dir: Path) -> Catalog:
    """Return the catalog; nothing is asked of it yet. Processes of this data directory tell it in turn."""
    if settings.hive is not None:
        from fluvial.catalog.hive import HiveCatalog

        return InTurn(HiveCatalog(settings), data_dir)
    from fluvial.catalog.unity import UnityCatalog

    return InTurn(UnityCatalog(settings), data_dir)


class Registrar:
    """Registers the tables of one process; one thread at a time calls it."""

    def __init__(self, catalog: Catalog, title: str, warehouse: Warehouse) -> None:
        self._catalog = catalog
        self._title = title
        self._warehouse = warehouse
        self._settled: dict[str, int | None] = {}
        """The version at which a table was registered, or refused; None where versions are not looked up."""
        self._waiting: dict[str, None] = {}
        self._not_before = 0.0
        self._is_away = False

    @classmethod
    def of(cls, settings: "Settings") -> "Registrar | None":
        """Return what registers the tables of these settings; None where they name no catalog."""
        if settings.catalog is None:
            return None
        catalog = open_catalog(settings.catalog, settings.data_dir)
        return cls(catalog, str(settings.catalog), Warehouse.at(settings.warehouse))

    def after(
        self,
        declaration: "Declaration",
        result: "RunResult",
        spark: "SparkSession | None",
        say: Callable[[str], None],
    ) -> None:
        """Register what a run has left, unless it is known to be as it was. `say` gets a line where that fails."""
        try:
            self._waiting.update(dict.fromkeys(_left(declaration, result)))
            needs_spark = self._catalog.needs_spark or self._warehouse.local is None
            if time.monotonic() < self._not_before or (needs_spark and spark is None):
                return
            for table in list(self._waiting):
                self._settle(table, spark, say)
                del self._waiting[table]
        except CatalogError as error:
            self._away(error, say)
        except Exception as error:  # the tables are as they should be
            _log.debug("the catalog was not told", exc_info=True)
            say(f"{declaration.table} is not registered: {self._title}: {type(error).__name__}: {error}; {REPAIR}")
            self._waiting.clear()

    def _settle(self, table: str, spark: "SparkSession | None", say: Callable[[str], None]) -> None:
        """Register a table that has changed. Raises CatalogError where the catalog takes no table at all."""
        version = None if self._warehouse.local is None else self._log(table).newest_version()
        if self._is_as_it_was(table, version):
            return
        try:
            entry = entry_of(self._warehouse, table, spark)
            if entry is not None:
                self._catalog.register(entry)
                self._is_away = False
        except FluvialError as error:
            if isinstance(error, CatalogError) and error.is_away:
                raise
            say(f"{table} is not registered: {error}; {REPAIR}")
        self._settled[table] = version

    def _is_as_it_was(self, table: str, version: int | None) -> bool:
        """Whether no commit since it was settled says something of its columns."""
        before = self._settled.get(table)
        if before is None or version is None:
            return False
        log = self._log(table)
        if any("metaData" in each for number in range(before + 1, version + 1) for each in log.actions(number)):
            return False
        self._settled[table] = version
        return True

    def _log(self, table: str) -> TableLog:
        return TableLog(None, f"{self._warehouse.local}/{table.replace('.', '/', 1)}")

    def _away(self, error: CatalogError, say: Callable[[str], None]) -> None:
        self._not_before = time.monotonic() + RETRY_SECONDS
        if not self._is_away:
            say(f"tables are not registered: {error}; {REPAIR}")
        self._is_away = True


def _left(declaration: "Declaration", result: "RunResult") -> Iterator[str]:
    """The tables that a run of this declaration writes."""
    from fluvial.spark.warehouse import table_name_of
    from fluvial.tables import Pipeline, Publication
    from fluvial.tables.refresh.late_table import late_table_of

    if isinstance(declaration, Publication) or result.version_after is None:
        return
    yield result.table
    if isinstance(declaration, Pipeline):
        if result.late_rows is not None:
            yield late_table_of(declaration)
    elif result.quarantined:
        yield f"quarantine.{table_name_of(declaration.topic)}"
