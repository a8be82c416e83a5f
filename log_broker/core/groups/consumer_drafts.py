"""
Decisions about a consumer group of the new protocol (KIP-848), before they are durable.

A decision is made on a draft: it reads the draft, adds records to it, and the draft becomes the group's state when they
are durable. Until then the group decides nothing else about its members, so no answer rests on what could still fail.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from log_broker.core.groups.consumer_group_records import ConsumerRecord, RecordKind
from log_broker.core.groups.consumer_group_state import ConsumerState
from log_broker.core.groups.protocol import Member


class Draft:
    """A state to decide on; it is copied when the first record is added."""

    def __init__(self, state: ConsumerState) -> None:
        self.state = state
        self.records: list[ConsumerRecord] = []
        self.cluster_version: int | None = None  # of the topics that it was checked against

    def add(self, record: ConsumerRecord) -> None:
        if not self.records:
            self.state = self.state.draft()
        self.records.append(record)
        self.state.replay(record)

    def forget(self, member_id: str) -> None:
        for kind in (RecordKind.CURRENT_MEMBER, RecordKind.TARGET_MEMBER, RecordKind.MEMBER):
            self.add(ConsumerRecord(kind, member_id, None))

    def replace(self, old_id: str, new_id: str) -> None:
        """A static member came back under another id: it takes over the target and owns what the old one owned."""
        current = self.state.owned_by(old_id)
        target = self.state.target_of(old_id)
        subscription = self.state.subscriptions[old_id]
        self.forget(old_id)
        self.add(ConsumerRecord(RecordKind.MEMBER, new_id, subscription))
        self.add(ConsumerRecord(RecordKind.TARGET_MEMBER, new_id, target))
        rejoined = replace(current, epoch=0, previous_epoch=0)
        self.add(ConsumerRecord(RecordKind.CURRENT_MEMBER, new_id, rejoined))


@dataclass(frozen=True, slots=True, kw_only=True)
class Downgrade:
    """From here on the group is a classic one of these members."""

    members: tuple[Member, ...]
    generation: int
    rebalances: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a request comes to, beside its draft. `after` sets timers once the draft's records are durable."""

    answer: Any = None
    after: Callable[[int], None] | None = None
    downgrade: Downgrade | None = None
