"""How far the log has moved on beyond a table."""

import logging
from collections.abc import Mapping

from fluvial.config import Settings

REQUEST_TIMEOUT_S = 5.0

logger = logging.getLogger(__name__)


def end_offsets(settings: Settings, topic: str) -> dict[int, int] | None:
    """
    Ask the log for the end of each partition of `topic`, with the records of open transactions left out.

    None when it does not answer: lag is a remark on a run, and no reason for the run to fail.
    """
    from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    client = AdminClient({"bootstrap.servers": settings.bootstrap_servers, "log_level": 0})
    try:
        metadata = client.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic]
        asked = client.list_offsets(
            {TopicPartition(topic, partition): OffsetSpec.latest() for partition in metadata.partitions},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=REQUEST_TIMEOUT_S,
        )
        return {partition.partition: answer.result().offset for partition, answer in asked.items()}
    except KafkaException as error:
        logger.warning("the lag of %s is not known: %s", topic, error)
        return None


def lag_behind(ends: Mapping[int, int], positions: Mapping[int, int]) -> int:
    """Count the records between a table's position in each partition (the next offset it wants) and the log's end."""
    return sum(max(0, end - positions.get(partition, 0)) for partition, end in ends.items())
