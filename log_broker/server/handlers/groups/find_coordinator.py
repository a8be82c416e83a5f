"""FindCoordinator: which broker keeps a group, or the transactions of a transactional id."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from log_broker.core.cluster.image import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from log_broker.core.security.acls import Operation, ResourceType
from log_broker.core.security.authorizer import Rights
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.coordinators.internal_topics import (
    TopicHost,
    ensure_offsets_topic,
    ensure_transactions_topic,
    group_partition,
    transaction_partition,
)
from log_broker.server.net.rights import Guarded, joined, refused, split
from log_broker.server.process.turns import in_turns

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

GROUP = 0
TRANSACTION = 1
MANY_KEYS_FROM = 4
KEYS_AT_ONCE_MAX = 500


async def handle(node: TopicHost, context: "RequestContext", request: Any) -> "Values":
    """Answer one FindCoordinator request."""
    key_type = getattr(request, "key_type", GROUP)
    if context.version < MANY_KEYS_FROM:
        return await _find(node, key_type, request.key, context.slot.listener)
    found: list[Values] = []
    async for keys in in_turns(request.coordinator_keys, KEYS_AT_ONCE_MAX):
        found += [await _find(node, key_type, key, context.slot.listener) for key in keys]
    return {"coordinators": found}


def guard(node: object, rights: Rights, context: "RequestContext", guarded: Guarded) -> Guarded:
    """Look at each group or transactional id."""
    request = guarded.request
    kinds = {GROUP: ResourceType.GROUP, TRANSACTION: ResourceType.TRANSACTIONAL_ID}
    resource = kinds.get(getattr(request, "key_type", GROUP))
    if resource is None:
        return guarded
    keys = (request.key,) if context.version < MANY_KEYS_FROM else request.coordinator_keys
    allowed, denied = split(keys, lambda key: rights.may(Operation.DESCRIBE, resource, key))
    if not denied:
        return guarded
    refusal = refused(resource)
    nobody = {"node_id": -1, "host": "", "port": -1, "error_code": refusal.code, "error_message": str(refusal)}
    if context.version < MANY_KEYS_FROM:
        raise refusal
    coordinators = [{"key": key, **nobody} for key in denied]
    return Guarded(
        replace(request, coordinator_keys=allowed), lambda answer: joined(answer, {"coordinators": coordinators})
    )


async def _find(node: TopicHost, key_type: int, key: str, listener: str) -> "Values":
    answer = {"key": key, "node_id": -1, "host": "", "port": -1, "error_message": None}
    try:
        topic, partition = await _place(node, key_type, key)
        leader = None if partition is None else node.cluster.leader_of(topic, partition)
        endpoint = None if leader is None else leader.endpoint(listener)
        if leader is None or endpoint is None:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The coordinator is not available.")
    except BrokerError as error:
        return {**answer, "error_code": error.code, "error_message": str(error)}
    return {
        **answer,
        "error_code": ErrorCode.NONE,
        "node_id": leader.node_id,
        "host": endpoint[0],
        "port": endpoint[1],
    }


async def _place(node: TopicHost, key_type: int, key: str) -> tuple[str, int | None]:
    if key_type not in {GROUP, TRANSACTION}:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"There are no coordinators of type {key_type}.")
    try:
        if key_type == TRANSACTION:
            await ensure_transactions_topic(node)
            return TRANSACTIONS_TOPIC, transaction_partition(node.cluster, key)
        await ensure_offsets_topic(node)
    except BrokerError as error:
        # It is made as soon as there are enough brokers for its replicas, and a controller: clients ask again.
        raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"The coordinator is not available: {error}") from error
    return OFFSETS_TOPIC, group_partition(node.cluster, key)
