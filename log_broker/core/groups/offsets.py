"""
The committed offsets of one group. They change by `apply` and `remove`, once the records of it are durable.

Those committed in a transaction are kept aside by `hold` until `decide` says how it ended. Where a partition was
committed in several ways, that which stands last in the log counts, not that which was decided last.
"""

from collections.abc import Iterable, Mapping

from log_broker.core.groups.protocol import GroupRecord, TopicPartition
from log_broker.core.groups.records import CommittedOffset, encode_offset, encode_offset_key


class GroupOffsets:
    """A map from (topic, partition) to what was committed there."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._offsets: dict[TopicPartition, CommittedOffset] = {}
        # By producer id: what its transaction commits, with the place of that in the order of all commits.
        self._held: dict[int, dict[TopicPartition, tuple[int, CommittedOffset]]] = {}
        self._commits = 0

    def __len__(self) -> int:
        return len(self._offsets) + len(self._held)

    def __contains__(self, place: TopicPartition) -> bool:
        return place in self._offsets

    def get(self, place: TopicPartition) -> CommittedOffset | None:
        return self._offsets.get(place)

    def partitions(self) -> list[TopicPartition]:
        return list(self._offsets)

    def committed_before(self, timestamp_ms: int) -> list[TopicPartition]:
        return [
            place
            for place, committed in self._offsets.items()
            if committed.timestamp_ms < timestamp_ms and not self.is_held(place)
        ]

    def records_of(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> tuple[GroupRecord, ...]:
        return tuple([(self._key(place), encode_offset(committed)) for place, committed in offsets.items()])

    def tombstones_of(self, places: Iterable[TopicPartition]) -> tuple[GroupRecord, ...]:
        return tuple((self._key(place), None) for place in places)

    def apply(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        self._offsets.update(offsets)
        if self._held:
            self._commits += 1
            for place in offsets:
                self._supersede(place, self._commits)

    def hold(self, producer_id: int, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Keep what a transaction commits until it is decided."""
        self._commits += 1
        held = self._held.setdefault(producer_id, {})
        held.update({place: (self._commits, committed) for place, committed in offsets.items()})

    def decide(self, producer_id: int, *, committed: bool) -> None:
        """Apply or drop what the producer's transaction committed; nothing of it is no error."""
        for place, (order, offset) in self._held.pop(producer_id, {}).items():
            if committed:
                self._offsets[place] = offset
                self._supersede(place, order)

    def is_held(self, place: TopicPartition) -> bool:
        """Whether a transaction that is not decided commits this partition."""
        return any(place in held for held in self._held.values())

    def known(self) -> list[TopicPartition]:
        """List the partitions of which anything is known, undecided commits among them."""
        held = (place for commits in self._held.values() for place in commits)
        return list(dict.fromkeys((*self._offsets, *held)))

    def _supersede(self, place: TopicPartition, order: int) -> None:
        for producer_id, held in list(self._held.items()):
            if place in held and held[place][0] < order:
                del held[place]
                if not held:
                    del self._held[producer_id]

    def remove(self, places: Iterable[TopicPartition]) -> None:
        self._commits += 1
        for place in list(places):
            self._offsets.pop(place, None)
            self._supersede(place, self._commits)

    def _key(self, place: TopicPartition) -> bytes:
        return encode_offset_key(self._group_id, *place)
