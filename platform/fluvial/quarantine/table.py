"""
Replaying records of a quarantine table: those that the run of a table could not decode, and put aside.

They are appended to their topic in a transaction that also says which they are, as the metadata of a group's offsets,
and are then marked in the table. A replay that is killed in between is finished by the next one, which marks first what
the last transaction appended. So each record goes back once, whoever asks how often.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fluvial.config import Settings
from fluvial.delta.commit import ATTEMPTS_MAX, commit_once
from fluvial.delta.errors import OvertakenError, TableError
from fluvial.delta.log import TableLog
from fluvial.delta.merge import merge
from fluvial.delta.stamp import new_run_id, read_position
from fluvial.kafka.admin import TIMEOUT_SECONDS
from fluvial.quarantine.records import Quarantined
from fluvial.quarantine.repair import RepairError, Repairing
from fluvial.quarantine.replay import SECONDS_MAX, Replayed, Said, append_once, transactional_producer
from fluvial.spark.connect import session_of_its_own
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.plan.guards import Guard

if TYPE_CHECKING:
    from confluent_kafka import Consumer
    from pyspark.sql import DataFrame, SparkSession

Place = tuple[int, int]
"""Partition and offset in the topic."""

MARK = "_replayed"
"""The column of a quarantine table that says when a record was replayed, or dropped."""
RECORDS_MAX = 500
"""Of one transaction: the metadata of an offset, which names them, has room for 4,096 bytes."""
WRONG_KEYS = frozenset({Guard.KEYLESS, Guard.BINARY_KEY})


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReplay:
    """
    The replay of one quarantine table: of the records `only`, or of all that wait where it is empty.

    With `leave_out`, records that cannot be repaired are passed over and go on waiting.
    """

    table: str
    settings: Settings
    spark: "SparkSession"
    repairing: Repairing
    only: Collection[Place] = ()
    leave_out: bool = False
    say: Said = lambda was, now, error: None
    step: Callable[[str], None] = lambda _step: None

    def run(self, *, dry_run: bool = False) -> Replayed:
        """
        Append what is wanted and has not been replayed, in the order of each partition's log.

        `step` hears of each step before it is done. Raises RepairError before anything of the same transaction is
        there, TableError for a table or a record that is not there, ClusterError and KafkaException.
        """
        topic = self._topic()
        done = Replayed()
        if dry_run:
            list(self._judged(self._waiting(), done))
            return done
        consumer = _consumer(self.settings, topic)
        try:
            # Whoever began before is fenced from here on, so that what is read now is the last word.
            producer = transactional_producer(self.settings, group_of(topic))
            self.step("mark what the last transaction appended")
            unmarked = {record.place for record in self._unmarked()}
            self._mark(unmarked.intersection(_last_appended(consumer, topic)))
            for chunk in _chunks(self._waiting()):
                judged = list(self._judged(chunk, done))
                settled = [was.place for was, _ in judged]
                self.step("append")
                append_once(producer, consumer, [now for _, now in judged if now is not None], _named(topic, settled))
                self.step("mark")
                self._mark(settled)
            return done
        finally:
            consumer.close()

    def _path(self) -> str:
        return Warehouse.at(self.settings.warehouse).path(self.table)

    def _topic(self) -> str:
        stamp = read_position(TableLog(self.spark, self._path()), self.table).stamp
        if stamp is None:
            raise TableError(f"there is no table {self.table}: no run has put a record of its topic aside")
        return stamp.topic

    def _rows(self) -> "DataFrame":
        return self.spark.read.format("delta").load(self._path())

    def _waiting(self) -> list[Quarantined]:
        """The records that are wanted and not marked."""
        known = {tuple(row) for row in self._rows().select("_partition", "_offset").collect()} if self.only else set()
        for partition, offset in sorted(set(self.only) - known):
            raise TableError(f"{self.table} has no record of partition {partition}, offset {offset}")
        return [each for each in self._unmarked() if not self.only or each.place in self.only]

    def _unmarked(self) -> list[Quarantined]:
        rows = self._rows()
        if MARK in rows.columns:
            rows = rows.where(f"{MARK} IS NULL")
        found = rows.selectExpr("*", "unix_millis(_timestamp) AS _ms").orderBy("_partition", "_offset").collect()
        return [*map(_quarantined, found)]

    def _judged(
        self, records: Sequence[Quarantined], done: Replayed
    ) -> Iterator[tuple[Quarantined, Quarantined | None]]:
        """Each record with what goes back of it, None where it is dropped; those that are left out are missing."""
        for record in records:
            try:
                if record.reason in WRONG_KEYS:
                    raise RepairError(
                        f"{record.position} has {record.reason}, and its topic's tables of keys have no place for it: "
                        "produce a new record, or pass over this one with --leave-out"
                    )
                now = self.repairing.repaired(record)
            except RepairError as error:
                if not self.leave_out:
                    raise
                self.say(record, None, error)
                done.left_out += 1
                continue
            self.say(record, now, None)
            if now is None:
                done.dropped += 1
            else:
                done.appended += 1
            yield record, now

    def _mark(self, places: Collection[Place]) -> None:
        """Say of records that they have been replayed, where the table does not say so yet."""
        log = TableLog(self.spark, self._path())
        for _ in range(ATTEMPTS_MAX):
            if not places:
                return
            with session_of_its_own(self.spark) as session:
                if MARK not in self._rows().columns:
                    session.sql(f"ALTER TABLE delta.`{log.path}` ADD COLUMNS ({MARK} TIMESTAMP)")
                position = read_position(log, self.table)
                assert position.stamp is not None, "it was there a moment ago"
                stamp = replace(
                    position.stamp,
                    batch=position.stamp.batch + 1,
                    offsets={partition: (end, end) for partition, end in position.ends.items()},
                    run=new_run_id(),
                )
                rows = session.createDataFrame(list(places), "partition INT, offset BIGINT")

                def write() -> None:
                    merge(
                        session,
                        log.path,
                        rows,  # noqa: B023
                        stamp,  # noqa: B023
                        on=f"t._partition = s.partition AND t._offset = s.offset AND t.{MARK} IS NULL",
                        clauses=[f"WHEN MATCHED THEN UPDATE SET {MARK} = current_timestamp()"],
                    )

                if commit_once(log, stamp, above=position.version, write=write) is not None:
                    return
        raise OvertakenError(self.table, ATTEMPTS_MAX, doing="replay")


def group_of(topic: str) -> str:
    """
    The group whose offsets name what the last transaction of a table's replay appended; its transactional id too.
    """
    return f"fluvial-replay-table-{topic}"


def _quarantined(row: Any) -> Quarantined:
    key, value = row["_key"], row["_value"]
    return Quarantined(
        topic=row["_topic"],
        partition=row["_partition"],
        offset=row["_offset"],
        place=(row["_partition"], row["_offset"]),
        key=None if key is None else bytes(key),
        value=None if value is None else bytes(value),
        timestamp_ms=row["_ms"],
        headers=(),
        reason=row["_reason"],
        part="value",
        field="",
        producer={},
    )


def _chunks(records: Sequence[Quarantined]) -> Iterator[Sequence[Quarantined]]:
    for start in range(0, len(records), RECORDS_MAX):
        yield records[start : start + RECORDS_MAX]


def _consumer(settings: Settings, topic: str) -> "Consumer":
    from confluent_kafka import Consumer

    return Consumer(settings.cluster.client(**{"group.id": group_of(topic), "enable.auto.commit": False}))


def _named(topic: str, places: Sequence[Place]) -> list[Any]:
    """What the offsets of a transaction say of the records that it settles: a partition's, each less the one before."""
    from confluent_kafka import TopicPartition

    by_partition: dict[int, list[int]] = {}
    for partition, offset in places:
        by_partition.setdefault(partition, []).append(offset)
    named = []
    for partition, offsets in by_partition.items():
        steps = [now - before for before, now in zip([0, *offsets], offsets, strict=False)]
        named.append(TopicPartition(topic, partition, offsets[-1] + 1, ",".join(f"{step:x}" for step in steps)))
    return named


def _last_appended(consumer: "Consumer", topic: str) -> list[Place]:
    """The records that the last transactions settled, by what their offsets say."""
    from confluent_kafka import TopicPartition

    partitions = consumer.list_topics(topic, timeout=TIMEOUT_SECONDS).topics[topic].partitions
    wanted = [TopicPartition(topic, partition) for partition in partitions]
    found: list[Place] = []
    for each in consumer.committed(wanted, timeout=SECONDS_MAX):
        offset = 0
        for step in (each.metadata or "").split(",") if each.offset >= 0 else ():
            if step:
                offset += int(step, 16)
                found.append((each.partition, offset))
    return found
