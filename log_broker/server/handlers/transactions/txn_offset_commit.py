"""TxnOffsetCommit: how far a group has read, to count once the transaction that says so is committed (KIP-447)."""

from typing import TYPE_CHECKING, Any, Protocol

from log_broker.core.cluster.image import OFFSETS_TOPIC
from log_broker.core.groups.protocol import Commit
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.batch import NO_SEQUENCE
from log_broker.server.coordinators.internal_topics import group_partition
from log_broker.server.coordinators.offset_commits import OffsetHost, Offsets, commit_values, read_offsets
from log_broker.server.coordinators.partitions import CoordinatorHost, join_transaction
from log_broker.server.coordinators.ports import HasGroups
from log_broker.server.partitions.ports import Partitions

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

ABORTABLE_FROM = 4
ADDS_PARTITION_FROM = 5
_RETRIED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.BROKER_NOT_AVAILABLE})


class _Host(CoordinatorHost, HasGroups, OffsetHost, Partitions, Protocol):
    """What is asked of the node here."""


async def handle(node: _Host, context: "RequestContext", request: Any) -> "Values":
    offsets, refused = read_offsets(node, request)
    error = await _commit(node, context.version, request, offsets) if offsets else ErrorCode.NONE
    return commit_values(request, refused, error)


async def _commit(node: _Host, version: int, request: Any, offsets: Offsets) -> ErrorCode:
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    error = node.groups.check(request.group_id)
    if error is ErrorCode.NONE:
        error = await _join_transaction(node, version, request)
    if error is not ErrorCode.NONE:
        return error
    generation = getattr(request, "generation_id", -1)
    answer = node.groups.ask(
        request.group_id,
        lambda token: Commit(
            token=token,
            member_id=getattr(request, "member_id", ""),
            generation=generation,
            instance_id=getattr(request, "group_instance_id", None),
            offsets=offsets,
            producer=(request.producer_id, request.producer_epoch),
        ),
        create=generation < 0,
    )
    if answer is None:
        return ErrorCode.ILLEGAL_GENERATION
    result: ErrorCode = await answer
    return result


async def _join_transaction(node: _Host, version: int, request: Any) -> ErrorCode:  # noqa: PLR0911 one for each answer
    """See that the group's partition is in the producer's transaction, and that its log knows of that."""
    partition = group_partition(node.cluster, request.group_id)
    runtime = None if partition is None else node.logs.get(OFFSETS_TOPIC, partition)
    if partition is None or runtime is None:
        return ErrorCode.NOT_COORDINATOR
    producer = (request.producer_id, request.producer_epoch)
    if runtime.transactions.is_open(*producer):
        return ErrorCode.NONE
    runtime.transactions.expect(*producer, NO_SEQUENCE)
    try:
        place = (OFFSETS_TOPIC, partition)
        errors = await join_transaction(
            node, request.transactional_id, producer, [place], add=version >= ADDS_PARTITION_FROM
        )
        error = errors[place]
    except BrokerError as failure:
        error = failure.code
    finally:
        runtime.transactions.answered(request.producer_id)
    match error:
        case ErrorCode.NONE:
            runtime.transactions.allow(*producer)
        case ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        case ErrorCode.TRANSACTION_ABORTABLE if version < ABORTABLE_FROM:
            return ErrorCode.INVALID_TXN_STATE
        case ErrorCode.CONCURRENT_TRANSACTIONS if version < ADDS_PARTITION_FROM:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # the one that older clients repeat
        case _ if error in _RETRIED:
            # The group's coordinator is the right one: it is the transaction's that must be waited for.
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return error
