"""
The auction house: a broker and a registry in this process, its topics, and the histories that the queries read.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fluvial.config import Settings
from fluvial.tables import history
from fluvial.tables.drive.runner import materialize
from fluvial.testing.embedded import EmbeddedPlatform
from tests.bench.nexmark.generator import Generator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fluvial.tables import History

PARTITIONS = 2
SIDE_ROWS = 10_000
_SENT_AT_ONCE = 20_000
_TIME = {"type": "long", "logicalType": "timestamp-millis"}
_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "person": {
        "id": "long",
        **dict.fromkeys(("name", "emailAddress", "creditCard", "city", "state"), "string"),
        "dateTime": _TIME,
        "extra": "string",
    },
    "auction": {
        "id": "long",
        **dict.fromkeys(("itemName", "description"), "string"),
        **dict.fromkeys(("initialBid", "reserve"), "long"),
        **dict.fromkeys(("dateTime", "expires"), _TIME),
        **dict.fromkeys(("seller", "category"), "long"),
        "extra": "string",
    },
    "bid": {
        **dict.fromkeys(("auction", "bidder", "price"), "long"),
        **dict.fromkeys(("channel", "url"), "string"),
        "dateTime": _TIME,
        "extra": "string",
    },
    "side_input": {"key": "long", "value": "string"},
}
_KEYS = {"person": "id", "auction": "id", "bid": "auction", "side_input": "key"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuctionHouse:
    """Its events go through topics; `open` makes these and the table that does not change."""

    platform: EmbeddedPlatform
    spark: "SparkSession"
    settings: Settings
    generator: Generator
    histories: "dict[str, History]" = field(default_factory=lambda: {topic: history(topic) for topic in _FIELDS})

    def open(self) -> None:
        """Register contracts, make topics, and fill the side input."""
        with self.settings.registry.client() as registry:
            for topic, fields in _FIELDS.items():
                listed = [{"name": name, "type": kind} for name, kind in fields.items()]
                schema = {"type": "record", "name": topic, "namespace": "nexmark", "fields": listed}
                registry.register(f"{topic}-value", json.dumps(schema))
                self.platform.broker.create_topic(topic, partitions=PARTITIONS)
        side = [{"key": key, "value": f"value {key}"} for key in range(SIDE_ROWS)]
        self.platform.send("side_input", side, key="key")
        self._refresh(["side_input"])

    def send(self, events: int) -> None:
        """Write the next events to their topics."""
        for first in range(0, events, _SENT_AT_ONCE):
            for kind, taken in self.generator.take(min(_SENT_AT_ONCE, events - first)).items():
                self.platform.send(kind, taken, key=_KEYS[kind])

    def refresh(self) -> None:
        """Bring the histories of events up to date."""
        self._refresh(["person", "auction", "bid"])

    def tables(self) -> "dict[str, DataFrame]":
        """The histories as they are now, by the name of their topic."""
        return {topic: self.read(table.table) for topic, table in self.histories.items()}

    def path(self, table: str) -> str:
        """Where a table lies."""
        return f"{self.settings.warehouse}/{table.replace('.', '/')}"

    def read(self, table: str) -> "DataFrame":
        """The rows of a table."""
        return self.spark.read.format("delta").load(self.path(table))

    def _refresh(self, topics: Iterable[str]) -> None:
        for topic in topics:
            materialize(self.histories[topic], self.settings, self.spark)
