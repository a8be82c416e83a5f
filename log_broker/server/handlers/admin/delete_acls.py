"""DeleteAcls: the end of all ACLs that match filters; each filter is answered with those that it matched."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from log_broker.core.cluster.access_changes import Deleted, delete_acls
from log_broker.core.cluster.image import ClusterImage
from log_broker.core.cluster.records import MetadataRecord
from log_broker.core.security.acls import AclFilter
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.handlers.admin.describe_acls import NO_AUTHORIZER, AclHost, filter_of
from log_broker.server.process.turns import in_turns
from log_broker.server.quorum.ports import HasAuthority

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

MATCHED_AT_ONCE_MAX = 50_000  # comparisons of a filter and an ACL in one turn of the event loop


class _Host(AclHost, HasAuthority, Protocol):
    """What is asked of the node here."""


async def handle(node: _Host, context: "RequestContext", request: Any) -> "Values":
    answers: list[Deleted] = []
    if node.authorizer is None:
        answers = [Deleted((ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER))] * len(request.filters)
        return _values(answers)

    def decide(filters: "Sequence[Any]", image: ClusterImage) -> Sequence[MetadataRecord]:
        records, outcomes = delete_acls(image, list(map(_filter, filters)))
        answers.extend(outcomes)
        return records

    at_once = max(1, MATCHED_AT_ONCE_MAX // (len(node.cluster.access.acls) + 1))
    async for filters in in_turns(request.filters, at_once):
        await node.authority.submit(partial(decide, filters))
    return _values(answers)


def _filter(entry: Any) -> AclFilter | BrokerError:
    try:
        return filter_of(entry)
    except BrokerError as error:
        return error


def _values(answers: "Sequence[Deleted]") -> "Values":
    return {
        "filter_results": [
            {
                "error_code": answer.refusal[0],
                "error_message": answer.refusal[1],
                "matching_acls": [
                    {
                        "error_code": ErrorCode.NONE,
                        "error_message": None,
                        "resource_type": acl.resource,
                        "resource_name": acl.name,
                        "pattern_type": acl.pattern,
                        "principal": acl.principal,
                        "host": acl.host,
                        "operation": acl.operation,
                        "permission_type": acl.permission,
                    }
                    for acl in answer.acls
                ],
            }
            for answer in answers
        ]
    }
