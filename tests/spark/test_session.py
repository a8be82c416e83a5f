"""The names that a session gives to the tables of a warehouse."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fluvial.config import Settings
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
