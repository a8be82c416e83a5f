"""
Which offsets a version of a table holds, and which versions hold an offset: read from the stamps of its commits.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fluvial.delta.errors import TableError
from fluvial.delta.log import TableLog
from fluvial.delta.stamp import Range, Stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """
    What one version of a table holds.

    `ends` is, for each partition of `topic`, the first offset that is not in it: all below are. `read` are the ranges
    that the commit `stamped_by` took in or, with `rewritten`, made again; a version of upkeep holds what stood before.
    """

    topic: str
    version: int
    stamped_by: int
    ends: Mapping[int, int]
    read: Mapping[int, Range]
    rewritten: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """
    The versions that hold an offset: those from `first` on. `rewritten` are those that made its row again.
    """

    first: int
    newest: int
    rewritten: tuple[int, ...] = ()


def offsets_of_version(log: TableLog, version: int | None = None) -> Holding:
    """
    Tell the offsets that a version holds, the newest unless given.

    Raises :class:`~fluvial.delta.errors.TableError` when the log has no such version, or nothing that tells.
    """
    newest = log.newest_version()
    if newest is None or (version is not None and not 0 <= version <= newest):
        held = "there is no table" if newest is None else f"its versions are 0 to {newest}"
        raise TableError(f"{log.path}: no version {version}: {held}")
    wanted = newest if version is None else version
    for commit in log.newest_first():
        if commit.version > wanted:
            continue
        stamp = Stamp.of(commit)
        if stamp is not None:
            return Holding(
                topic=stamp.topic,
                version=wanted,
                stamped_by=commit.version,
                ends={partition: end for partition, (_, end) in sorted(stamp.offsets.items())},
                read=dict(sorted(stamp.read.items())),
                rewritten=bool(stamp.rewritten),
            )
    raise TableError(f"{log.path}: no commit up to version {wanted} that is still in the log tells its offsets")


def versions_of_offset(log: TableLog, partition: int, offset: int) -> Sighting | None:
    """
    Tell the versions that hold the record at an offset; None for one that is not in the table (yet).

    Raises :class:`~fluvial.delta.errors.TableError` when the commit that took it in is no longer in the log.
    """
    newest = log.newest_version()
    rewritten: list[int] = []
    for commit in log.newest_first():
        stamp = Stamp.of(commit)
        if stamp is None:
            continue
        start, end = stamp.offsets.get(partition, (0, 0))
        if end <= offset:
            return None
        if start <= offset:
            assert newest is not None, "a commit was read"
            return Sighting(first=commit.version, newest=newest, rewritten=tuple(sorted(rewritten)))
        again = stamp.rewritten.get(partition)
        if again is not None and again[0] <= offset < again[1]:
            rewritten.append(commit.version)
        if stamp.batch == 1:
            # The first commit began above it: the log held it no longer.
            return None
    if newest is None:
        return None
    raise TableError(
        f"{log.path}: the commit that took offset {offset} of partition {partition} in is gone from the log"
    )
