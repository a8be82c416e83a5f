"""
One step of a consumer group's member towards its target assignment (KIP-848).

    STABLE ──────────────── there is a newer target ─────────────────────┐
    UNRELEASED_PARTITIONS ─ it sends a heartbeat ────────────────────────┤
    UNREVOKED_PARTITIONS ── it no longer names what it had to give up ───┘
        ├─▶ UNREVOKED_PARTITIONS   it owns something that it must give up; its epoch stays until it has
        ├─▶ UNRELEASED_PARTITIONS  something of its target is still another's; it gets all that is free
        └─▶ STABLE                 it has its target
"""

from collections.abc import Mapping

from log_broker.core.groups.consumer_group_records import (
    NO_PARTITIONS,
    CurrentAssignment,
    MemberState,
    TopicIdPartition,
    TopicIdPartitions,
)
from log_broker.core.groups.consumer_group_state import is_reconciled


def reconcile(
    current: CurrentAssignment,
    *,
    target: TopicIdPartitions,
    target_epoch: int,
    owners: Mapping[TopicIdPartition, str],
    owned: TopicIdPartitions | None,
) -> CurrentAssignment:
    """
    Return what the member has next, the same when it must wait.

    `owners` are those of all partitions that anyone has or has yet to give up. `owned` is what the member says it has,
    None when it says nothing, which is no word of having given anything up.
    """
    if is_reconciled(current, target_epoch):
        return current
    if current.state is MemberState.UNREVOKED_PARTITIONS and _has_any(owned, current.revoking):
        return current
    kept = current.assigned & target
    revoking = current.assigned - target
    if revoking and _has_any(owned, revoking):
        return CurrentAssignment(
            epoch=current.epoch,
            previous_epoch=current.epoch,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=kept,
            revoking=revoking,
        )
    # What the member itself has just given up is free, for itself as well.
    wanted = target - kept
    free = frozenset(place for place in wanted if place not in owners or place in current.revoking)
    return CurrentAssignment(
        epoch=target_epoch,
        previous_epoch=current.epoch,
        state=MemberState.STABLE if free == wanted else MemberState.UNRELEASED_PARTITIONS,
        assigned=kept | free,
        revoking=NO_PARTITIONS,
    )


def _has_any(owned: TopicIdPartitions | None, places: TopicIdPartitions) -> bool:
    return owned is None or not owned.isdisjoint(places)
