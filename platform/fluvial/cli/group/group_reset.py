"""Where `fluvial group reset` sets a group's offsets: read from the flags, then worked out for each partition."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from fluvial.cli.topic.partitions import TopicPartition, bounds_of, duration, instant, time_offsets_of

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

EARLIEST = "earliest"
LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Exactly one of these is given; `end` is EARLIEST or LATEST."""

    end: str | None = None
    offset: int | None = None
    shift: int | None = None
    when: datetime | None = None


def target_of(
    *,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    shift_by: int | None,
    to_datetime: str | None,
    by_duration: str | None,
) -> Target:
    """Read the flags; raises a usage error unless exactly one of them is given."""
    given = {
        "--to-earliest": to_earliest or None,
        "--to-latest": to_latest or None,
        "--to-offset": to_offset,
        "--shift-by": shift_by,
        "--to-datetime": to_datetime,
        "--by-duration": by_duration,
    }
    named = [flag for flag, value in given.items() if value is not None]
    if len(named) != 1:
        which = f"not {' and '.join(named)} at once" if named else "none is given"
        raise typer.BadParameter(f"choose the target offsets with one of {', '.join(given)}: {which}")
    if to_earliest or to_latest:
        return Target(end=EARLIEST if to_earliest else LATEST)
    if to_datetime is not None:
        return Target(when=instant("--to-datetime", to_datetime))
    if by_duration is not None:
        return Target(when=datetime.now(UTC) - duration("--by-duration", by_duration))
    return Target(offset=to_offset, shift=shift_by)


def planned(
    admin: "AdminClient", target: Target, tps: Sequence[TopicPartition], committed: Mapping[TopicPartition, int]
) -> list[dict[str, Any]]:
    """
    Compute the new offset of each partition, within the log. Raises ClusterError.

    A shift starts from the committed offset; a partition without one is skipped. A time after the last record means
    the end.
    """
    if target.shift is not None:
        tps = [tp for tp in tps if tp in committed]
    bounds = bounds_of(admin, tps)
    times = {} if target.when is None else time_offsets_of(admin, tps, target.when)
    changes = []
    for tp in tps:
        first, end = bounds[tp]
        match target:
            case Target(end=str(name)):
                wanted = first if name == EARLIEST else end
            case Target(offset=int(offset)):
                wanted = offset
            case Target(shift=int(shift)):
                wanted = committed[tp] + shift
            case _:
                wanted = times[tp] if times[tp] >= 0 else end
        changes.append(
            {
                "topic": tp[0],
                "partition": tp[1],
                "committed_offset": committed.get(tp),
                "new_offset": min(max(wanted, first), end),
            }
        )
    return changes
