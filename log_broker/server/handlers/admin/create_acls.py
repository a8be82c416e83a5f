"""CreateAcls: more ACLs, each answered on its own; one that is there already is granted."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from log_broker.core.cluster.access_changes import Refusal, create_acls
from log_broker.core.cluster.image import ClusterImage
from log_broker.core.cluster.records import MetadataRecord
from log_broker.core.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.handlers.admin.describe_acls import NO_AUTHORIZER, AclHost
from log_broker.server.process.turns import in_turns
from log_broker.server.quorum.ports import HasAuthority

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

ACLS_AT_ONCE_MAX = 500  # in one turn of the event loop


class _Host(AclHost, HasAuthority, Protocol):
    """What is asked of the node here."""


async def handle(node: _Host, context: "RequestContext", request: Any) -> "Values":
    answers: list[Refusal] = []
    if node.authorizer is None:
        answers = [(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)] * len(request.creations)
        return _values(answers)

    def decide(creations: "Sequence[Any]", image: ClusterImage) -> Sequence[MetadataRecord]:
        records, outcomes = create_acls(image, list(map(_acl, creations)), lambda: uuid4().hex)
        answers.extend(outcomes)
        return records

    async for creations in in_turns(request.creations, ACLS_AT_ONCE_MAX):
        await node.authority.submit(partial(decide, creations))
    return _values(answers)


def _acl(creation: Any) -> Acl | BrokerError:
    try:
        return Acl(
            resource=ResourceType(creation.resource_type),
            name=creation.resource_name,
            pattern=PatternType(creation.resource_pattern_type),
            principal=creation.principal,
            host=creation.host,
            operation=Operation(creation.operation),
            permission=Permission(creation.permission_type),
        )
    except ValueError as error:
        return BrokerError(ErrorCode.INVALID_REQUEST, f"The ACL has an unknown element: {error}.")


def _values(answers: "Sequence[Refusal]") -> "Values":
    return {"results": [{"error_code": error, "error_message": message} for error, message in answers]}
