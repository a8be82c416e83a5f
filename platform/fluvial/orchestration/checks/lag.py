"""How far the log has moved on beyond the tables, asked of the cluster and of the tables' own logs; no Spark starts."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fluvial.config import Settings
from fluvial.delta.log import TableLog
from fluvial.delta.stamp import read_position
from fluvial.kafka import KafkaCluster
from fluvial.kafka.admin import admin_of
from fluvial.spark.kafka import TopicError
from fluvial.spark.warehouse import Warehouse

if TYPE_CHECKING:
    import dagster as dg

REQUEST_TIMEOUT_S = 5.0

logger = logging.getLogger(__name__)

Offsets = Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnds:
    """Where topics end, with the records of open transactions left out, and which of those asked for are not there."""

    ends: Mapping[str, Offsets]
    absent: tuple[str, ...]


class LogWatch:
    """
    Asks one cluster where topics end; keeps its connection between, for one who asks every few seconds.

    However many topics there are, it is one request for their partitions and one to each leader for their ends, and an
    answer or an error comes within a few seconds.
    """

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._admin = admin_of(cluster, **{"client.id": "fluvial-dagster"})

    def ends(self, topics: Collection[str]) -> LogEnds:
        """Return the ends of `topics`; raises TopicError when the cluster does not answer in time."""
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        from fluvial.kafka.recording_admin import meaning

        self._admin.poll(0)
        try:
            known = self._admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
            there = [topic for topic in sorted(topics) if topic in known and known[topic].error is None]
            tps = [TopicPartition(topic, number) for topic in there for number in known[topic].partitions]
            found: Any = (
                self._admin.list_offsets(
                    {tp: OffsetSpec.latest() for tp in tps},
                    isolation_level=IsolationLevel.READ_COMMITTED,
                    request_timeout=REQUEST_TIMEOUT_S,
                )
                if tps
                else {}
            )
            ends: dict[str, dict[int, int]] = {}
            for tp, answer in found.items():
                ends.setdefault(tp.topic, {})[tp.partition] = answer.result().offset
        except KafkaException as error:
            heard = self._admin.heard()
            why = None if heard is None else meaning(heard)
            raise TopicError(
                f"no answer from {self._cluster}: {error.args[0].str()}"
                if why is None
                else f"the Kafka broker at {self._cluster} {why}"
            ) from error
        return LogEnds(ends=ends, absent=tuple(sorted(set(topics) - set(there))))


_watches: dict[KafkaCluster, LogWatch] = {}


def log_ends(settings: Settings, topics: Collection[str]) -> LogEnds:
    """Return the ends of `topics`, over a connection that this process keeps; raises TopicError."""
    cluster = settings.cluster
    if cluster not in _watches:
        _watches[cluster] = LogWatch(cluster)
    return _watches[cluster].ends(topics)


def end_offsets(settings: Settings, topic: str) -> Offsets | None:
    """
    Ask the log for the end of each partition of `topic`.

    None when it does not answer or has no such topic: lag is a remark on a run, and no reason for the run to fail.
    """
    try:
        return log_ends(settings, [topic]).ends.get(topic)
    except TopicError as error:
        logger.warning("the lag of %s is not known: %s", topic, error)
        return None


def lag_of(ends: Offsets, positions: Offsets) -> int:
    """Count the records between a table's position in each partition (the next offset it wants) and the log's end."""
    return sum(max(0, end - positions.get(partition, 0)) for partition, end in ends.items())


def table_ends(settings: Settings, table: str, instance: "dg.DagsterInstance | None" = None) -> Offsets:
    """
    Return, for each partition, the first offset that is not in a table; nothing for a table that is not there.

    The table's own log says it. Where the warehouse is not on this machine that takes a Spark session, so that the last
    materialisation which `instance` knows of says it instead. Raises TableError for a table that cannot go on.
    """
    warehouse = Warehouse.at(settings.warehouse)
    if warehouse.local is not None:
        local = f"{warehouse.local}/{table.replace('.', '/')}"
        return read_position(TableLog(None, local), table).ends
    return {} if instance is None else _reported_ends(instance, table)


def _reported_ends(instance: "dg.DagsterInstance", table: str) -> Offsets:
    from fluvial.orchestration.assets.graph import asset_key
    from fluvial.orchestration.assets.metadata import plain

    event = instance.get_latest_materialization_event(asset_key(table))
    told = event.asset_materialization if event is not None else None
    rows = plain(told.metadata).get("offsets", []) if told is not None else []
    return {row["partition"]: row["end"] for row in rows}
