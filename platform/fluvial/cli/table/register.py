"""`fluvial table register`: have the catalog of the settings know the tables that are there."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from fluvial.catalog.errors import CatalogError
from fluvial.cli import terminal
from fluvial.cli.options import AnswerFormat, Form, with_spark
from fluvial.config import Settings
from fluvial.errors import ConfigError, FluvialError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class NotRegisteredError(FluvialError):
    """Tables are not in the catalog."""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Example:  fluvial table register state.customers")(register)


@with_spark
def register(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE…]", help="Only these tables (default: all).", show_default=False),
    ] = None,
    answer_format: AnswerFormat = Form.TABLE,
    *,
    settings: Settings,
) -> None:
    """
    Register tables in the catalog that [catalog] in fluvial.toml names, with their columns as they are now.

    Runs do it by themselves. This is for tables that were there before, and after the catalog was away.
    """
    if settings.catalog is None:
        raise ConfigError("there is no catalog to register tables in: write unity or hive in [catalog] of fluvial.toml")
    with _reader(settings) as spark:
        outcomes, failed = _register(settings, _chosen(settings, tables or (), spark), spark)
    if answer_format is Form.JSON:
        terminal.answer(json.dumps([{"table": name, "outcome": outcome} for name, outcome in outcomes], indent=2))
    else:
        terminal.table(("table", "outcome"), outcomes)
    if failed:
        raise NotRegisteredError("; ".join(failed))


@contextmanager
def _reader(settings: Settings) -> "Iterator[SparkSession | None]":
    """A session where tables or catalog need one."""
    from fluvial.cli.spark import spark_of
    from fluvial.spark.warehouse import Warehouse

    assert settings.catalog is not None, "there is a catalog"
    if settings.catalog.hive is None and Warehouse.at(settings.warehouse).local is not None:
        yield None
        return
    with spark_of(settings) as (spark, _say):
        yield spark


def _chosen(settings: Settings, tables: Sequence[str], spark: "SparkSession | None") -> list[str]:
    from fluvial.cli.table.places import path_of
    from fluvial.spark.warehouse import Warehouse

    warehouse = Warehouse.at(settings.warehouse)
    if warehouse.local is not None:
        for table in tables:
            path_of(settings, table)
    return list(dict.fromkeys(tables)) or warehouse.tables(spark)


def _register(
    settings: Settings, tables: Sequence[str], spark: "SparkSession | None"
) -> tuple[list[tuple[str, str]], list[str]]:
    """Return what became of each table, and why some are not registered. Raises CatalogError where none can be."""
    from fluvial.catalog.entry import entry_of
    from fluvial.catalog.registrar import open_catalog
    from fluvial.spark.warehouse import Warehouse

    assert settings.catalog is not None, "there is a catalog"
    catalog, warehouse = open_catalog(settings.catalog, settings.data_dir), Warehouse.at(settings.warehouse)
    outcomes: list[tuple[str, str]] = []
    failed: list[str] = []
    for table in tables:
        try:
            entry = entry_of(warehouse, table, spark)
            if entry is None:
                raise FluvialError(f"there is no table at {warehouse.path(table)}")
            outcomes.append((table, catalog.register(entry).value))
        except FluvialError as error:
            if isinstance(error, CatalogError) and error.is_away:
                raise
            outcomes.append((table, "failed"))
            failed.append(f"{table}: {error}")
    return outcomes, failed
