"""
All records of a topic up to where a table has read: from the log, or from a history where the log lacks the first ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fluvial.delta.erasures import Erasures
from fluvial.delta.log import TableLog
from fluvial.delta.stamp import Position, Range, Stamp, offsets_predicate, read_position
from fluvial.kafka import KafkaCluster
from fluvial.spark.avro import DECODED, Contract, decode
from fluvial.spark.kafka import Span, read_span
from fluvial.spark.offset_times import Window, cut_topic
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.declarations import History
from fluvial.tables.plan.frames import META_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TOUCHED = "_touched"
"""The key of a record, as bytes."""


class Records(Protocol):
    """
    The records that a table is made of.
    """

    @property
    def where(self) -> str:
        """
        Where they are read from.
        """

    def between(self, window: Window) -> Mapping[int, Range]:
        """
        The range of each partition from the first record that is not before the window to the first that is behind it.
        """

    def keys(self, ranges: Mapping[int, Range]) -> "DataFrame":
        """
        The keys of the records of these ranges, each once, in the column TOUCHED.
        """

    def of_keys(self, keys: "DataFrame", contract: Contract) -> "DataFrame":
        """
        All records of these keys as :func:`~fluvial.spark.avro.decode` has them.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecords:
    """
    The records of the log, up to the ends of `stamp`, but for those that the table leaves out.
    """

    session: "SparkSession"
    cluster: KafkaCluster
    stamp: Stamp
    erasures: Erasures

    @property
    def where(self) -> str:
        """
        Where they are read from.
        """
        return f"the first record of {self.stamp.topic}"

    def between(self, window: Window) -> Mapping[int, Range]:
        """
        The ranges of a stretch of time. Raises :class:`~fluvial.spark.kafka.TopicError`.
        """
        return cut_topic(self.cluster, self.stamp.topic, [window.start_ms, window.end_ms]).between(0, 1)

    def keys(self, ranges: Mapping[int, Range]) -> "DataFrame":
        """
        The keys of the records of these ranges.
        """
        return self._read(ranges).where("key IS NOT NULL").selectExpr(f"key AS {TOUCHED}").distinct()

    def of_keys(self, keys: "DataFrame", contract: Contract) -> "DataFrame":
        """
        All records of these keys; no other one is decoded.
        """
        whole = {partition: (0, end) for partition, (_, end) in self.stamp.offsets.items()}
        return decode(self._read(whole).join(keys, _expr(f"key = {TOUCHED}"), "left_semi"), contract)

    def _read(self, ranges: Mapping[int, Range]) -> "DataFrame":
        erased = self.erasures.until(self.stamp.erased).places()
        span = Span(topic=self.stamp.topic, ranges=ranges, skipped=self.stamp.skipped, erased=erased)
        return read_span(self.session, self.cluster, span)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRecords:
    """
    The rows of a history, up to the ends of `stamp`, of which it has every record.
    """

    table: str
    rows: "DataFrame"
    stamp: Stamp

    @property
    def where(self) -> str:
        """
        Where they are read from.
        """
        return self.table

    def between(self, window: Window) -> Mapping[int, Range]:
        """
        The ranges of a stretch of time.
        """
        cuts = (
            f"min(CASE WHEN unix_millis(_timestamp) >= {moment} THEN _offset END)"
            for moment in (window.start_ms, window.end_ms)
        )
        rows = self.rows.groupBy("_partition").agg(*map(_expr, cuts)).collect()
        ends = {partition: end for partition, (_, end) in self.stamp.offsets.items()}
        return {
            partition: (first, ends[partition] if last is None else last)
            for partition, first, last in rows
            if first is not None and partition in ends
        }

    def keys(self, ranges: Mapping[int, Range]) -> "DataFrame":
        """
        The keys of the records of these ranges.
        """
        rows = self.rows.where(offsets_predicate(ranges)).where("_key IS NOT NULL")
        return rows.selectExpr(f"CAST(_key AS BINARY) AS {TOUCHED}").distinct()

    def of_keys(self, keys: "DataFrame", contract: Contract) -> "DataFrame":
        """
        All records of these keys; a tombstone is of no schema.
        """
        whole = {partition: (0, end) for partition, (_, end) in self.stamp.offsets.items()}
        wanted = self.rows.where(offsets_predicate(whole)).join(
            keys, _expr(f"CAST(_key AS BINARY) = {TOUCHED}"), "left_semi"
        )
        fields = ", ".join(f"'{name}', `{name}`" for name in contract.field_names)
        value = f"named_struct({fields}, '{DECODED}', true) AS value"
        return wanted.selectExpr(value, *META_COLUMNS, "CASE WHEN _schema_id IS NOT NULL THEN X'' END AS _raw")


def history_records(
    session: "SparkSession", warehouse: Warehouse, histories: Sequence[History], stamp: Stamp, contract: Contract
) -> HistoryRecords | None:
    """
    The records of the first of these histories that has all records up to the ends of a table's stamp, and leaves out
    the very ones that the table does; None where none has.
    """
    for history in histories:
        log = TableLog(session, warehouse.path(history.table))
        position = read_position(log, history.table)
        if position.version is None or history.dedupe is not None or not _has_all(log, position, stamp):
            continue
        rows = session.read.format("delta").option("versionAsOf", str(position.version)).load(log.path)
        if {*contract.field_names} <= {*rows.columns}:
            return HistoryRecords(table=history.table, rows=rows, stamp=stamp)
    return None


def _has_all(log: TableLog, position: Position, stamp: Stamp) -> bool:
    """Whether the commits of a history, as far as its log has them, took in all offsets from 0 up to the stamp's."""
    known = position.stamp
    if known is None or (known.topic, known.topic_id) != (stamp.topic, stamp.topic_id) or known.adopted:
        return False
    if (known.skipped, known.erased) != (stamp.skipped, stamp.erased):
        return False
    if any(position.ends.get(partition, 0) < end for partition, (_, end) in stamp.offsets.items()):
        return False
    left = {partition: position.ends[partition] for partition in stamp.offsets}
    for commit in log.newest_first(until=position.version):
        each = Stamp.of(commit)
        for partition, (start, end) in ({} if each is None else each.offsets).items():
            if left.get(partition) == end:
                left[partition] = start
    return not any(left.values())


def _expr(text: str) -> "Column":
    from pyspark.sql.functions import expr

    return expr(text)
