"""The names that a session gives to the tables of a warehouse."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fluvial.config import Settings
from fluvial.spark.class_archive import ClassArchive
from fluvial.spark.jars import require_jars
from fluvial.spark.java import require_java
from fluvial.spark.session import UnknownTableError, register_tables, run_sql
from fluvial.spark.warehouse import Warehouse

pytestmark = pytest.mark.spark


def test_a_session_that_moves_to_another_warehouse_reads_its_tables(
    spark: Any, base_settings: Settings, tmp_path: Path
) -> None:
    for folder, rows in (("one", 1), ("two", 2)):
        settings = replace(base_settings, warehouse=str(tmp_path / folder))
        spark.range(rows).write.format("delta").save(Warehouse.at(settings.warehouse).path("history.moved"))
        assert "history.moved" in register_tables(spark, settings)
        assert run_sql(spark, settings, "select count(*) n from history.moved").first()["n"] == rows
    assert Path(Warehouse.at(str(tmp_path / "one")).path("history.moved")).is_dir(), "only the name is dropped"


def test_an_unknown_table_is_answered_with_the_known_ones(spark: Any, warehouse_settings: Settings) -> None:
    with pytest.raises(UnknownTableError, match=r"no table history\.nothing"):
        run_sql(spark, warehouse_settings, "select * from history.nothing")


def test_a_session_reads_its_classes_from_the_archive(spark: Any) -> None:
    archive = ClassArchive.of(require_java(), require_jars())
    if archive.file is None:
        pytest.skip("no archive here: `python -m fluvial.spark.jars` makes it")
    mapped = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/maps")
    if not mapped.exists():
        pytest.skip("what a process has mapped is not told here")
    assert str(archive.file) in mapped.read_text()
