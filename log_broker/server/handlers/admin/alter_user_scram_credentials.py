"""AlterUserScramCredentials: users get or lose passwords, salted by whoever asks, so that none is ever known here."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from log_broker.core.cluster.access_changes import Deletion, Refusal, Upsertion, alter_credentials
from log_broker.core.cluster.image import ClusterImage
from log_broker.core.cluster.records import MetadataRecord
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.quorum.ports import HasAuthority

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

ALTERED_MAX = 1_000  # users in one request, each some 10 µs of the event loop


async def handle(node: HasAuthority, context: "RequestContext", request: Any) -> "Values":
    deletions = [Deletion(each.name, each.mechanism) for each in request.deletions]
    upsertions = [
        Upsertion(each.name, each.mechanism, each.iterations, bytes(each.salt), bytes(each.salted_password))
        for each in request.upsertions
    ]
    if len(deletions) + len(upsertions) > ALTERED_MAX:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"One request alters {ALTERED_MAX} credentials at most.")
    answers: dict[str, Refusal] = {}

    def decide(image: ClusterImage) -> Sequence[MetadataRecord]:
        records, outcomes = alter_credentials(image, deletions, upsertions)
        answers.update(outcomes)
        return records

    await node.authority.submit(decide)
    return {
        "results": [
            {"user": name, "error_code": error, "error_message": message} for name, (error, message) in answers.items()
        ]
    }
