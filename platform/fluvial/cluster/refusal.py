"""Why a broker refuses a record: librdkafka has the reason in its response (KIP-467) and does not give it away."""

from collections.abc import Iterable

from fluvial.cluster.wire import ClusterLink
from fluvial.errors import FluvialError
from fluvial.kafka import KafkaCluster
from log_broker.records.record import build_batch
from log_broker.wire.apis import ApiKey

TIMEOUT_SECONDS = 10.0

Sent = tuple[int, bytes | None, bytes | None]
"""The timestamp in ms, key and value of a record."""


def why_refused(cluster: KafkaCluster, leader: str, topic: str, partition: int, records: Iterable[Sent]) -> str | None:
    """
    Send records that were refused to the leader of their partition (`host:port`) once more, as one batch.

    Return the reason that it gives; None where it gives none, does not answer, or has taken the batch this time.
    """
    batch = bytes(build_batch((timestamp, key, value, ()) for timestamp, key, value in records))
    data = {"name": topic, "partition_data": ({"index": partition, "records": batch},)}
    timeout_ms = int(TIMEOUT_SECONDS * 1000)
    try:
        with ClusterLink(cluster, TIMEOUT_SECONDS) as link:
            answer = link.ask_at(
                leader,
                ApiKey.PRODUCE,
                {"transactional_id": None, "acks": -1, "timeout": timeout_ms, "topic_data": (data,)},
            )
    except (OSError, FluvialError):
        return None
    (found,) = answer.responses[0].partition_responses
    for each in getattr(found, "record_errors", ()):
        if each.batch_index_error_message:
            return str(each.batch_index_error_message)
    return getattr(found, "error_message", None)
