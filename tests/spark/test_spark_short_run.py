"""Which runs are short, as topics and logs tell before there is a Spark."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from log_topic import Schemas, Sent

from fluvial.config import Settings
from fluvial.tables import compacted, history, pipeline
from fluvial.tables.drive import short_run
from fluvial.tables.drive.runner import materialize
from fluvial.tables.drive.short_run import is_short

pytestmark = pytest.mark.spark

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "n", "type": "int"}]}


def test_what_waits_and_what_is_read_whole_decide(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(ORDER)
    orders, newest = history(topic.name, name="orders"), compacted(topic.name, name="newest")
    mart = pipeline(name="all_orders", inputs=["history.orders"])(lambda rows: rows)
    topic.send([Sent(key=f"k{n}", value={"n": n}) for n in range(10)])
    monkeypatch.setattr(short_run, "RECORDS_MAX", 10)
    assert is_short([orders, mart], settings)
    assert not is_short([orders, newest], settings), "each of both reads them"
    for table in (orders, newest):
        materialize(table, settings, spark, schemas=schemas)
    assert is_short([orders, newest, mart], settings)
    topic.send([Sent(key="k", value={"n": n}) for n in range(11)])
    assert not is_short([orders], settings)
    monkeypatch.setattr(short_run, "RECORDS_MAX", 100)
    monkeypatch.setattr(short_run, "BYTES_MAX", 100)
    assert is_short([orders], settings), "a history is added to, and not read"
    assert not is_short([newest], settings)
    assert not is_short([mart], settings)


def test_what_cannot_be_known_is_not_short(
    settings: Settings, make_topic: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(ORDER)
    assert is_short([history(topic.name)], settings)
    assert not is_short([history("no_such_topic")], settings)
    assert not is_short([history(topic.name)], replace(settings, warehouse="s3a://bucket/warehouse"))
