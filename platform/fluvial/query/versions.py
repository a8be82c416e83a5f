"""
Which version of a table a query reads: the newest, one it names, that of a time, or that of an offset of its topic.

Read from the table's own log, whose commits store the offsets that they were made from.
"""

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fluvial.delta.errors import TableError
from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import MartStamp
from fluvial.delta.stamp import Stamp
from fluvial.errors import FluvialError
from fluvial.query.references import UnclearError

if TYPE_CHECKING:
    import pyarrow as pa

_AT = re.compile(r"(?P<topic>[^:=\s]+):(?P<pairs>\d+=\d+(?:,\d+=\d+)*)", re.ASCII)
_PARTITIONS_SHOWN = 4


class Newer(Protocol):
    """
    What is behind a version of a table, to be read together with it.
    """

    @property
    def number(self) -> int:
        """
        How many offsets of the log it takes.
        """
        ...

    def why_spark(self, columns: Sequence[tuple[str, str]]) -> str | None:
        """
        Why Spark is to read it into a table with these columns; None where Sail gives what Spark would.
        """
        ...

    def query(self, version: "Version", sources: "Sources") -> str:
        """
        The query whose rows are those of the table at a version, with what is behind it.
        """
        ...


class Sources(Protocol):
    """
    What an engine reads for a statement, and makes for it.
    """

    @property
    def folder(self) -> Path:
        """
        Where files for the statement are put.
        """
        ...

    def of(self, table: str, version: int) -> str:
        """
        What stands behind FROM for a version of a table.
        """
        ...

    def columns(self, table: str, version: int) -> Sequence[tuple[str, str]]:
        """
        The columns of a version of a table, with Spark's names of types.
        """
        ...

    def current(self, version: "Version") -> str:
        """
        What stands behind FROM for a table with what is behind its version, if anything is.
        """
        ...

    def rows(self, statement: str) -> "pa.Table":
        """
        The answer to a statement.
        """
        ...

    def made(self, name: str, make: "MakesFrame", statements: Sequence[str]) -> str:
        """
        What stands behind FROM for that which `make` makes of the answers to statements, for a table of this `name`.
        """
        ...


class MakesFrame(Protocol):
    """
    Makes a DataFrame of DataFrames.
    """

    def __call__(self, frames: Sequence[Any]) -> Any: ...

    def told(self) -> Mapping[str, Any]:
        """
        What another process of the project makes the same from, in JSON's types.
        """
        ...


class NoSuchOffsetError(FluvialError):
    """
    No version of a table ends at the offsets of `place`; `below` is the newest that holds nothing behind them.

    `made_of` are the tables that the table is made of, whose versions have offsets where its own have none.
    """

    def __init__(
        self, message: str, *, place: "At | None" = None, below: "Version | None" = None, made_of: Sequence[str] = ()
    ) -> None:
        self.place = place
        self.below = below
        self.made_of = made_of
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """
    The place in a topic that a query is asked as of: of each partition the last offset that is in it.
    """

    topic: str
    offsets: Mapping[int, int]

    @classmethod
    def of(cls, words: Sequence[str], option: str = "--at") -> "list[At]":
        """
        Read `orders:0=1234` or `orders:0=1234,1=77`, once or more for a topic. Raises :class:`FluvialError`.
        """
        places: dict[str, dict[int, int]] = {}
        for text in words:
            match = _AT.fullmatch(text)
            if match is None:
                raise FluvialError(f"{option} {text!r}: write TOPIC:PARTITION=OFFSET, for example orders:0=1234")
            offsets = places.setdefault(match["topic"], {})
            for pair in match["pairs"].split(","):
                partition, _, offset = pair.partition("=")
                if int(partition) in offsets:
                    raise FluvialError(f"{option} {text!r} names partition {partition} of {match['topic']} twice")
                offsets[int(partition)] = int(offset)
        return [cls(topic=topic, offsets=offsets) for topic, offsets in places.items()]

    def __str__(self) -> str:
        return f"{self.topic}:" + ",".join(f"{partition}={offset}" for partition, offset in self.offsets.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """
    A version of a table, with what its log tells of how fresh it is.

    `ends` is, for each partition of `topic`, the first offset that is not in it; `inputs` are the versions of the
    tables that a mart was made from. `made_ms` is the commit's time, in milliseconds of Unix time. With `newer` the
    records behind it are read too, and `ends` are theirs; `stale` says why a table has none where all were asked for.
    For a mart with `newer` its inputs are read as `of` says; with `is_made` it is made of these alone.
    """

    table: str
    version: int
    made_ms: int | None = None
    topic: str | None = None
    ends: Mapping[int, int] = field(default_factory=dict)
    inputs: Mapping[str, int] = field(default_factory=dict)
    newer: Newer | None = None
    stale: str | None = None
    of: "Sequence[Version]" = ()
    is_made: bool = False

    def __str__(self) -> str:
        """
        The version as it is shown below an answer.
        """
        if self.is_made:
            return f"{self.table} made of {' and of '.join(map(str, self.of))}"
        parts = [f"{self.table} version {self.version}"]
        if self.made_ms is not None:
            made = dt.datetime.fromtimestamp(self.made_ms / 1000, dt.UTC)
            parts.append(f"of {made:%Y-%m-%dT%H:%M:%SZ}")
        if self.of:
            parts.append(f"and what is newer in {' and in '.join(map(str, self.of))}")
        elif self.newer is not None:
            parts.append(f"and {self.newer.number:,} newer offsets")
        shown = [f"{partition}={end - 1}" for partition, end in sorted(self.ends.items()) if end > 0]
        if self.topic is not None and shown:
            more = f" and {len(shown) - _PARTITIONS_SHOWN} more" if len(shown) > _PARTITIONS_SHOWN else ""
            parts.append(f"at {self.topic}:{','.join(shown[:_PARTITIONS_SHOWN])}{more}")
        if self.inputs and not self.of:
            parts.append(f"from {', '.join(f'{name}@{version}' for name, version in self.inputs.items())}")
        if self.stale is not None:
            parts.append(f"(not fresh: {self.stale})")
        return " ".join(parts)

    @property
    def places(self) -> list[At]:
        """
        The last record of each partition that is in it, for every topic that it is known to be made from; of several
        inputs that differ the least.
        """
        ends: dict[str, dict[int, int]] = {} if self.topic is None else {self.topic: dict(self.ends)}
        for each in self.of:
            for place in each.places:
                known = ends.setdefault(place.topic, {})
                for partition, offset in place.offsets.items():
                    known[partition] = min(known.get(partition, offset + 1), offset + 1)
        return [
            At(topic=topic, offsets={partition: end - 1 for partition, end in sorted(known.items()) if end})
            for topic, known in ends.items()
        ]


def resolve(
    log: TableLog, table: str, *, version: int | None = None, timestamp: str | None = None, places: Sequence[At] = ()
) -> Version:
    """
    The version of a table that is meant, the newest where nothing says otherwise.

    Raises :class:`~fluvial.delta.errors.TableError` for a log that lacks what it takes, :class:`NoSuchOffsetError` for
    a place between two versions, and :class:`UnclearError` for a time that Spark must judge.
    """
    newest = log.check()
    if newest is None:
        raise TableError(f"{log.path} holds no table")
    if version is not None:
        return _described(log, table, version)
    if timestamp is not None:
        return _described(log, table, _at_time(log, timestamp))
    if places:
        return _at_place(log, table, places)
    return _described(log, table, newest)


def _described(log: TableLog, table: str, version: int) -> Version:
    """A version with what the newest stamp up to it says, which is looked for as long as the log has commits."""
    made_ms = None
    for commit in log.newest_first(until=version):
        if commit.version == version:
            made_ms = commit.timestamp_ms
        stamp = Stamp.of(commit)
        if stamp is not None:
            return _stamped(table, version, made_ms, stamp)
        mart = MartStamp.of(commit)
        if mart is not None:
            inputs = {name: each.version for name, each in mart.inputs.items()}
            return Version(table=table, version=version, made_ms=made_ms, inputs=inputs)
    return Version(table=table, version=version, made_ms=made_ms)


def _stamped(table: str, version: int, made_ms: int | None, stamp: Stamp) -> Version:
    ends = {partition: end for partition, (_, end) in stamp.offsets.items()}
    return Version(table=table, version=version, made_ms=made_ms, topic=stamp.topic, ends=ends)


def _at_place(log: TableLog, table: str, places: Sequence[At]) -> Version:
    """
    The first version whose rows are those of all records up to the offsets, and of none behind them.
    """
    found: Version | None = None
    above: Version | None = None
    topics: set[str] = set()
    for commit in log.newest_first():
        stamp = Stamp.of(commit)
        if stamp is None:
            mart = MartStamp.of(commit)
            if mart is not None:
                raise NoSuchOffsetError(f"{table} is made of tables, and names no offsets", made_of=[*mart.inputs])
            continue
        topics.add(stamp.topic)
        place = next((place for place in places if place.topic == stamp.topic), None)
        if place is None:
            break
        held = _stamped(table, commit.version, commit.timestamp_ms, stamp)
        if all(held.ends.get(partition) == offset + 1 for partition, offset in place.offsets.items()):
            found = held
        elif found is not None:
            break
        elif all(held.ends.get(partition, 0) <= offset + 1 for partition, offset in place.offsets.items()):
            raise _between(table, place, below=held, above=above)
        else:
            above = held
    if found is not None:
        return found
    named = ", ".join(place.topic for place in places)
    if not topics.intersection(place.topic for place in places):
        of = f"is made from {', '.join(sorted(topics))}" if topics else "names no offsets"
        raise NoSuchOffsetError(f"{table} {of}, so it has no version as of an offset of {named}")
    place = next(place for place in places if place.topic in topics)
    raise _between(table, place, below=None, above=above)


def _between(table: str, place: At, *, below: Version | None, above: Version | None) -> NoSuchOffsetError:
    """Say which versions there are instead."""

    def told(version: Version) -> str:
        ends = ",".join(f"{partition}={version.ends.get(partition, 0) - 1}" for partition in place.offsets)
        return f"version {version.version} (--at {place.topic}:{ends})"

    if below is None and above is None:
        message = f"{table} has no version that ends at {place}"
    elif below is None:
        assert above is not None
        message = f"no version of {table} ends at {place}: the oldest in its log is {told(above)}"
    elif above is None:
        message = f"{table} does not hold {place} yet: the newest is {told(below)}"
    else:
        message = f"no version of {table} ends at {place}: the nearest are {told(below)} and {told(above)}"
    return NoSuchOffsetError(message, place=place, below=below)


def _at_time(log: TableLog, text: str) -> int:
    """
    The newest version that is not later than a time, by Delta's rule: the commit files' times, each above the last.
    """
    try:
        wanted = dt.datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise UnclearError(f"{text!r} is no time that is read here") from error
    wanted = wanted.replace(tzinfo=wanted.tzinfo or dt.UTC)
    wanted_ms = int(wanted.timestamp() * 1000)
    times = log.commit_times_ms()
    found = [version for version, made_ms in times.items() if made_ms <= wanted_ms]
    if not found or wanted_ms > max(times.values()):
        raise UnclearError(f"{text!r} is not within the commits of the log")
    return max(found)
