"""A driver is killed while it erases a key: asked again, the key is gone everywhere, and everything else is there."""

import signal
from pathlib import Path
from typing import Any

import killed_erasure
import pytest
from erased_tables import SCHEMA, check_exact, events, last_records, mentions, on_disk, run, tables_of
from killed_driver import end_of
from killed_erasure import BEGUN, WRITTEN
from log_topic import Schemas

from fluvial.config import Settings
from fluvial.delta.erasures import read_erasures
from fluvial.spark.warehouse import Warehouse

pytestmark = pytest.mark.spark

TABLES = ("history.customers", "state.customers", "marts.big", "marts.towns")
# In their order: each driver goes on where the one before it was killed.
KILLS = (
    ("appending a tombstone", BEGUN),
    ("listing the key", BEGUN),
    ("listing the key", WRITTEN),
    ("history.customers: taking out", WRITTEN),
    ("state.customers: taking out", BEGUN),
    ("marts.towns: bringing it", WRITTEN),
    ("state.customers: writing files", WRITTEN),
    ("marts.big: removing the files", BEGUN),
    ("marts.big: removing the files", WRITTEN),
)


@pytest.mark.rota
@pytest.mark.timeout(1500)
def test_an_erasure_that_is_killed_at_any_moment_is_gone_on_with(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(SCHEMA, partitions=2, config={"cleanup.policy": "compact"})
    tables = {name: each for name, each in tables_of(topic.name).items() if name in TABLES}
    for spent in (1, 5):
        topic.send(events(spent=spent))
        run(tables, settings, spark, schemas)
    before = others(spark, settings)
    assert all(before.values())
    for step, moment in KILLS:
        assert erasure(topic.name, step, moment, settings) == -signal.SIGKILL, (step, moment)
        assert others(spark, settings) == before, (step, moment)
    assert erasure(topic.name, "", "", settings) == 0
    assert on_disk(Path(settings.warehouse)) == []
    assert others(spark, settings) == before
    check_exact(tables, settings, spark, schemas)
    # However often it was begun: a tombstone, and an entry of the list.
    assert [value for _, value in last_records(topic, spark, settings)].count(None) == 1
    listed = read_erasures(spark, settings.warehouse, topic.name, None)
    assert [each.number for each in listed.known] == [1]


def erasure(topic: str, step: str, moment: str, settings: Settings) -> int:
    """Erase the key in a process of its own, which may be killed at a moment of a step; the status it ended with."""
    order = {"topic": topic, "tables": " ".join(TABLES), "step": step, "moment": moment}
    return end_of(killed_erasure.__file__, order, settings)


def others(spark: Any, settings: Settings) -> dict[str, list[str]]:
    """The rows of each table that do not mention the key."""
    warehouse = Warehouse.at(settings.warehouse)
    frames = {name: spark.read.format("delta").load(warehouse.path(name)) for name in TABLES}
    return {name: sorted(str(row) for row in frame.collect() if not mentions(row)) for name, frame in frames.items()}
