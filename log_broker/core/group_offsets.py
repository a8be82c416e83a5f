"""The committed offsets of one group. They change by `apply` and `remove`, once the records of it are durable."""

from collections.abc import Iterable, Mapping

from log_broker.core.group_protocol import GroupRecord, TopicPartition
from log_broker.core.group_records import CommittedOffset, OffsetKey, encode_offset, encode_offset_key


class GroupOffsets:
    """A map from (topic, partition) to what was committed there."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._offsets: dict[TopicPartition, CommittedOffset] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def __contains__(self, place: TopicPartition) -> bool:
        return place in self._offsets

    def get(self, place: TopicPartition) -> CommittedOffset | None:
        return self._offsets.get(place)

    def partitions(self) -> list[TopicPartition]:
        return list(self._offsets)

    def committed_before(self, timestamp_ms: int) -> list[TopicPartition]:
        return [place for place, committed in self._offsets.items() if committed.timestamp_ms < timestamp_ms]

    def records_of(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> tuple[GroupRecord, ...]:
        return tuple((self._key(place), encode_offset(committed)) for place, committed in offsets.items())

    def tombstones_of(self, places: Iterable[TopicPartition]) -> tuple[GroupRecord, ...]:
        return tuple((self._key(place), None) for place in places)

    def apply(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        self._offsets.update(offsets)

    def remove(self, places: Iterable[TopicPartition]) -> None:
        for place in places:
            self._offsets.pop(place, None)

    def _key(self, place: TopicPartition) -> bytes:
        return encode_offset_key(OffsetKey(group=self._group_id, topic=place[0], partition=place[1]))
