"""Where `fluvial topic consume` starts and stops in each partition."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import typer

from fluvial.cli.topic.partitions import TopicPartition, bounds_of, start_of, time_offsets_of
from fluvial.kafka.admin import ClusterError

if TYPE_CHECKING:
    from confluent_kafka import Message
    from confluent_kafka.admin import AdminClient


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRange:
    """
    What is read: from an offset or a time on, up to the end there was at the start or to a time.

    `offset` counts from the end where it is negative, and is moved to the nearest that the log holds. Of `since` and
    `until` the first belongs to the range and the second does not. Timestamps need not rise with the offsets, so a
    range of times is read to the end, and records of other times in between are passed over.
    """

    partitions: tuple[int, ...] = ()
    offset: int | None = None
    since: datetime | None = None
    until: datetime | None = None

    @classmethod
    def of(
        cls,
        *,
        partitions: list[int] | None,
        offset: str | None,
        from_beginning: bool,
        since: str | None,
        until: str | None,
    ) -> "RecordRange":
        """Read the options; raises a usage error."""
        if sum((offset is not None, from_beginning, since is not None)) > 1:
            raise typer.BadParameter("--from-beginning, --offset and --from: give one of them")
        first = None if since is None else start_of("--from", since)
        last = None if until is None else start_of("--until", until)
        if first is not None and last is not None and first >= last:
            raise typer.BadParameter(f"--from {since} is not before --until {until}")
        if last is not None and first is None and offset is None:
            from_beginning = True
        return cls(
            partitions=tuple(dict.fromkeys(partitions or ())),
            offset=0 if from_beginning else _offset(offset),
            since=first,
            until=last,
        )

    @property
    def logical_start(self) -> int | None:
        """The start that every partition has and the client finds by itself; None where the cluster is to be asked."""
        from confluent_kafka import OFFSET_BEGINNING, OFFSET_END

        if self.since is not None or self.offset not in (None, 0):
            return None
        return int(OFFSET_END if self.offset is None else OFFSET_BEGINNING)

    def chosen(self, topic: str, known: list[int]) -> list[int]:
        """Return the partitions to read; raises ClusterError for one that the topic does not have."""
        for number in self.partitions:
            if number not in known:
                raise ClusterError(f"topic {topic!r} has no partition {number}; it has {len(known)}, from 0 on")
        return list(self.partitions) or known

    def spans(self, admin: "AdminClient", tps: list[TopicPartition]) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return where each partition starts, and its end now. Raises ClusterError."""
        bounds = bounds_of(admin, tps)
        if self.since is not None:
            starts = time_offsets_of(admin, tps, self.since)
            return {tp: (end if starts[tp] < 0 else starts[tp], end) for tp, (_, end) in bounds.items()}
        return {tp: (self._start(first, end), end) for tp, (first, end) in bounds.items()}

    def _start(self, first: int, end: int) -> int:
        if self.offset is None:
            return end
        return min(end, max(first, self.offset if self.offset >= 0 else end + self.offset))

    def has(self, message: "Message") -> bool:
        """Whether a record's timestamp is in the range."""
        time_ms = message.timestamp()[1]
        return (self.since is None or time_ms >= self.since.timestamp() * 1000) and (
            self.until is None or time_ms < self.until.timestamp() * 1000
        )


def _offset(text: str | None) -> int | None:
    if text is None or text == "end":
        return None
    if text == "beginning":
        return 0
    if not text.removeprefix("-").isdecimal() or text in ("-0", ""):
        raise typer.BadParameter(f"--offset {text!r}: write a number, -N for the last N, beginning or end")
    return int(text)
