"""CreatePartitions: topics grow; the partitions that are there keep their records."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from log_broker.core.cluster.controller import add_partitions
from log_broker.core.cluster.image import ClusterImage
from log_broker.core.cluster.records import MetadataRecord
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.handlers.admin.create_topics import PARTITIONS_PER_REQUEST_MAX, too_many_partitions
from log_broker.server.process.ports import Cluster
from log_broker.server.process.turns import in_turns
from log_broker.server.quorum.ports import HasAuthority
from log_broker.server.replication.ports import HasReplicas

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

TOPICS_AT_ONCE_MAX = 200  # in one turn of the event loop


class _Host(Cluster, HasAuthority, HasReplicas, Protocol):
    """What is asked of the node here."""


async def handle(node: _Host, context: "RequestContext", request: Any) -> "Values":
    repeated = {name for name, count in Counter(topic.name for topic in request.topics).items() if count > 1}
    answers: dict[str, Values] = {}
    added = sum(map(partial(_added, node), request.topics))

    def decide(topics: "Sequence[Any]", image: ClusterImage) -> list[MetadataRecord]:
        records: list[MetadataRecord] = []
        for wanted in topics:
            answers[wanted.name] = {"error_code": ErrorCode.NONE, "error_message": None}
            try:
                if wanted.name in repeated:
                    raise BrokerError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                if added > PARTITIONS_PER_REQUEST_MAX:
                    raise too_many_partitions(added)
                topic = image.topics.get(wanted.name)
                if topic is None:
                    raise BrokerError(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{wanted.name}' does not exist."
                    )
                assignments = None
                if wanted.assignments is not None:
                    assignments = [tuple(entry.broker_ids) for entry in wanted.assignments]
                record = add_partitions(image, topic, wanted.count, assignments)
                image.replay(record)
                records.append(record)
            except BrokerError as error:
                answers[wanted.name] = {"error_code": error.code, "error_message": str(error)}
        return [] if request.validate_only else records

    async for topics in in_turns(request.topics, TOPICS_AT_ONCE_MAX):
        await node.authority.submit(partial(decide, topics))
    await node.replicas.until_made()
    return {"results": [{"name": name, **answer} for name, answer in answers.items()]}


def _added(node: _Host, wanted: Any) -> int:
    topic = node.cluster.topics.get(wanted.name)
    return 0 if topic is None else max(wanted.count - len(topic.partitions), 0)
