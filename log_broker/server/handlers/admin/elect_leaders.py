"""ElectLeaders: the preferred replica leads again, or any at all where none in sync is left."""

from typing import TYPE_CHECKING, Any, Protocol

from log_broker.core.cluster.elections import PREFERRED, UNCLEAN
from log_broker.errors import ErrorCode
from log_broker.server.process.ports import Cluster
from log_broker.server.quorum.controller import HasController, active_controller

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


class _Host(Cluster, HasController, Protocol):
    """What is asked of the node here."""


async def handle(node: _Host, context: "RequestContext", request: Any) -> "Values":
    kind = getattr(request, "election_type", PREFERRED)
    if kind not in {PREFERRED, UNCLEAN}:
        return {"error_code": ErrorCode.INVALID_REQUEST, "replica_election_results": ()}
    if request.topic_partitions is None:
        asked = [(name, range(len(topic.partitions))) for name, topic in node.cluster.topics.items()]
    else:
        asked = [(topic.topic, topic.partitions) for topic in request.topic_partitions]
    places = [(name, index) for name, indexes in asked for index in indexes]
    outcomes = await active_controller(node).elect_leaders(places, kind)
    results: dict[str, list[Values]] = {name: [] for name, _ in asked}
    for (name, index), (error, message, _) in zip(places, outcomes, strict=True):
        # Who asks for all partitions is told of those that an election was held for.
        if request.topic_partitions is not None or error is not ErrorCode.ELECTION_NOT_NEEDED:
            results[name].append({"partition_id": index, "error_code": error, "error_message": message})
    return {
        "error_code": ErrorCode.NONE,
        "replica_election_results": [
            {"topic": name, "partition_result": answers}
            for name, answers in results.items()
            if answers or request.topic_partitions is not None
        ],
    }
