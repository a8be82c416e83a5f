"""
A history that leaves duplicates out holds the first record of each id, wherever batches are cut.
"""

import math
import random
from collections import defaultdict
from typing import Any

import pytest
from log_topic import Schemas, Sent, Topic

from fluvial.config import Settings
from fluvial.delta.errors import TableError
from fluvial.tables import history
from fluvial.tables.drive.rebuild import rebuild
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.verify import verify
from fluvial.tables.replay.history import rewrite

pytestmark = pytest.mark.spark

SCHEMA = {
    "type": "record",
    "name": "Purchase",
    "fields": [{"name": "purchase_id", "type": ["null", "string"], "default": None}, {"name": "n", "type": "int"}],
}

FIRST_MS = 1_767_225_600_000  # 2026-01-01
HOUR_MS = 3_600_000


def random_purchases(dice: random.Random, number: int, partitions: int) -> list[Sent]:
    """Purchases of which about half come again; some have no id, some are tombstones, some do not decode."""
    sent = []
    for index in range(number):
        name, partition = f"p{dice.randrange(number // 2)}", dice.randrange(partitions)
        value = {"purchase_id": None if dice.random() < 0.1 else name, "n": index}
        match dice.random():
            case share if share < 0.05:
                sent.append(Sent(key=name, partition=partition))
            case share if share < 0.1:
                sent.append(Sent(key=name, partition=partition, raw=b"no purchase"))
            case _:
                time_ms = FIRST_MS + dice.randrange(6 * HOUR_MS)
                sent.append(Sent(key=name, value=value, partition=partition, timestamp_ms=time_ms))
    return sent


def first_records(topic: Topic, within_ms: float = math.inf) -> list[tuple[int, int, int | None]]:
    """(partition, offset, n) of what is kept, by plain Python, one record after another."""
    seen: dict[tuple[int, str], list[int]] = defaultdict(list)
    kept: list[tuple[int, int, int | None]] = []
    for partition, offset, record in topic.in_order():
        if not record.decodes:
            continue
        identity = record.value["purchase_id"] if record.value is not None else None
        times = [] if identity is None else seen[partition, identity]
        if any(abs(record.timestamp_ms - time_ms) <= within_ms for time_ms in times):
            continue
        kept.append((partition, offset, record.value["n"] if record.value is not None else None))
        times.append(record.timestamp_ms)
    return kept


def rows_of(spark: Any) -> list[tuple[int, int, int | None]]:
    rows = spark.sql("SELECT _partition, _offset, n FROM history.purchases ORDER BY _partition, _offset").collect()
    return [(row._partition, row._offset, row.n) for row in rows]


@pytest.mark.rota
@pytest.mark.parametrize("within", [pytest.param(None, id="ever"), pytest.param("1 hour", id="an hour")])
def test_the_first_record_of_each_id_stays_wherever_batches_are_cut(
    within: str | None, spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(SCHEMA, partitions=2)
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    dice = random.Random(seed)
    events = random_purchases(dice, 120, partitions=2)
    declaration = history(topic.name, name="purchases", dedupe="purchase_id", dedupe_within=within)
    within_ms = math.inf if within is None else HOUR_MS
    cuts = sorted(dice.sample(range(1, 120), 2))
    for start, end in zip([0, *cuts], [*cuts, 120], strict=True):
        topic.send(events[start:end])
        materialize(declaration, settings, spark, schemas=schemas)
        assert rows_of(spark) == first_records(topic, within_ms)
    assert verify(declaration, settings, spark, schemas=schemas).is_exact
    expected = rows_of(spark)
    rewrite(declaration, settings, spark, {0: (10, 30), 1: (0, 20)}, schemas=schemas)
    assert rows_of(spark) == expected
    rebuild(declaration, settings, spark, schemas=schemas)
    assert rows_of(spark) == expected
    otherwise = history(topic.name, name="purchases")
    with pytest.raises(TableError, match="built with another dedupe than is declared now"):
        materialize(otherwise, settings, spark, schemas=schemas)
