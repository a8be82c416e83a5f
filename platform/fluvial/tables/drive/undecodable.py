"""
Records that do not decode, put into their topic's quarantine table as they came, with the reason.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fluvial.delta.commit import ATTEMPTS_MAX, append, commit_once
from fluvial.delta.errors import OvertakenError, TableError
from fluvial.delta.log import TableLog
from fluvial.delta.stamp import Position, Stamp, read_position
from fluvial.kafka import KafkaCluster
from fluvial.spark.avro import Contract, decode
from fluvial.spark.kafka import Span, TopicBounds, read_span
from fluvial.spark.session import know_table
from fluvial.spark.warehouse import Warehouse, table_name_of
from fluvial.tables.plan import frames

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecodable:
    """
    The records of a topic that do not decode by a contract. `erased` is the last erasure that its spans leave out.
    """

    spark: "SparkSession"
    cluster: KafkaCluster
    warehouse: Warehouse
    bounds: TopicBounds
    contract: Contract
    erased: int
    say: Callable[[str], None]

    def quarantine(self, span: Span) -> int:
        """
        Put every one below the ends of `span` in the topic's quarantine table; returns how many are new.

        The table is shared by all tables of the topic and has a position of its own: what another run put there is
        not put there again. A record between that position and the start of the span decoded in an earlier batch.
        """
        table = f"quarantine.{table_name_of(span.topic)}"
        path = self.warehouse.path(table)
        log = TableLog(self.spark, path)
        for _ in range(ATTEMPTS_MAX):
            position = read_position(log, table)
            stamp = self._stamp(span, position, table, path)
            if stamp is None:
                return 0
            self.say(f"{table}: putting aside the records of {span.topic} that do not decode")
            lacking = replace(span, ranges=stamp.offsets, skipped={})
            decoded = decode(read_span(self.spark, self.cluster, lacking), self.contract)
            rows = frames.quarantine_rows(decoded, self.contract).coalesce(1)
            commit = commit_once(log, stamp, above=position.version, write=lambda: append(rows, path, stamp))  # noqa: B023
            if commit is not None:
                know_table(self.spark, table, path)
                return commit.metric("numOutputRows")
        raise OvertakenError(table, ATTEMPTS_MAX)

    def _stamp(self, span: Span, position: Position, table: str, path: str) -> Stamp | None:
        """The stamp of what the quarantine table lacks of a span; None when it lacks nothing."""
        known, topic_id = position.stamp, self.bounds.topic_id
        if known is not None and known.topic_id and topic_id and known.topic_id != topic_id:
            raise TableError(f"{table} holds records of an earlier topic of that name: move {path} away and run again")
        ranges = {}
        for partition, (start, end) in span.ranges.items():
            begin = max(start, position.ends.get(partition, start))
            ranges[partition] = (begin, max(end, begin))
        if all(start == end for start, end in ranges.values()):
            return None
        return Stamp(
            topic=span.topic,
            topic_id=topic_id,
            batch=1 if known is None else known.batch + 1,
            offsets=ranges,
            # What a table that was there has got rid of is no more than it had before.
            erased=self.erased if known is None else known.erased,
        )
