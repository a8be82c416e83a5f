"""The flights by the hour and in their weather: what docs/windows-and-joins.md declares is what its pandas makes."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from confluent_kafka.admin import AdminClient
from log_topic import Schemas
from markdown_it import MarkdownIt

from fluvial.config import Settings
from fluvial.tables import history
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.verify import verify
from fluvial.tables.refresh import key_plan, part_refresh
from fluvial_demo.feeds import all_feeds
from fluvial_demo.publish import Publisher

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "windows-and-joins.md"
DAYS = ("2013-01-03", "2013-01-05")


@pytest.fixture
def page() -> dict[str, Any]:
    """What the page's blocks of Python define."""
    names: dict[str, Any] = {"__name__": "page"}
    for token in MarkdownIt("commonmark").parse(PAGE.read_text(encoding="utf-8")):
        if token.type == "fence" and token.info.split()[:1] == ["python"]:
            exec(compile(token.content, str(PAGE), "exec"), names)
    return names


@pytest.fixture
def topics(admin: AdminClient) -> Iterator[None]:
    """The topics of the demo, of which nothing is left."""
    yield
    known = admin.list_topics(timeout=30).topics
    mine = [topic for topic in known if topic.removesuffix(".quarantine") in {"flight_events", "weather"}]
    for deleted in admin.delete_topics(mine).values():
        deleted.result(30)


@pytest.mark.rota
@pytest.mark.usefixtures("topics")
def test_the_answers_are_those_of_pandas(
    page: dict[str, Any], spark: Any, settings: Settings, schemas: Schemas, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (key_plan, part_refresh):
        monkeypatch.setattr(module, "why_full", lambda _work: None)
    marts = [page["flights_by_hour"], page["departures_in_weather"]]
    for until in DAYS:
        publish(until, settings)
        for table in (history("flight_events"), page["weather_versions"], *marts):
            materialize(table, settings, spark)
        for mart, expected in zip(marts, (page["by_hour"](until), page["in_weather"](until)), strict=True):
            rows = spark.table(mart.table).select(*expected.columns).collect()
            found = pd.DataFrame(rows, columns=expected.columns)
            assert_same(found, expected)
            assert verify(mart, settings, spark, schemas=schemas).is_exact
        assert spark.table("late.flights_by_hour").count() == 5


def publish(until: str, settings: Settings) -> None:
    feeds = all_feeds(datetime.fromisoformat(until).replace(tzinfo=UTC))
    with settings.registry.client() as registry, Publisher(settings.cluster, registry) as publisher:
        for feed in feeds:
            if feed.topic in {"flight_events", "weather"}:
                publisher.publish(feed)


def assert_same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    """The same rows in any order; times as Spark gives them are of this machine's zone, without saying so."""
    for name in found.columns:
        if str(expected[name].dtype).startswith("datetime"):
            found[name] = pd.to_datetime(found[name].map(lambda at: at.timestamp()), unit="s", utc=True)
            expected[name] = expected[name].astype("datetime64[ns, UTC]")
        elif str(expected[name].dtype) not in {"object", "string", "str"}:
            found[name], expected[name] = found[name].astype("float64"), expected[name].astype("float64")
    found, expected = (rows.sort_values(list(rows.columns), ignore_index=True) for rows in (found, expected))
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)
