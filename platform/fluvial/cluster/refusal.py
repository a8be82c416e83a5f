"""Why a broker refuses a record: librdkafka has the reason in its response (KIP-467) and does not give it away."""

import time
from collections.abc import Sequence

from fluvial.cluster.wire import ClusterLink
from fluvial.errors import FluvialError
from fluvial.kafka import KafkaCluster
from log_broker.records.compression import Codec
from log_broker.records.record import build_batch
from log_broker.wire.apis import ApiKey

TIMEOUT_SECONDS = 10.0

KeyAndValue = tuple[bytes | None, bytes | None]


def why_refused(
    cluster: KafkaCluster, leader: str, topic: str, partition: int, records: Sequence[KeyAndValue]
) -> str | None:
    """
    Send the records of a refused batch to the leader of their partition (`host:port`) once more, as one batch.

    librdkafka names all of a batch where one is at fault. They must stay together: those in order would be taken alone.
    Return the reason that the broker gives; None where it gives none or does not answer.
    """
    now_ms = int(time.time() * 1000)
    batch = bytes(build_batch(((now_ms, key, value, ()) for key, value in records), codec=Codec.LZ4))
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
    told = (each.batch_index_error_message for each in getattr(found, "record_errors", ()))
    return next(filter(None, told), None)
