"""
The stamp that every commit of fluvial carries in its `userMetadata`: what the table holds as of that version.
"""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fluvial.delta.errors import TableError
from fluvial.delta.log import Commit, TableLog

Range = tuple[int, int]
Skips = Mapping[int, tuple[int, ...]]
"""Offsets by partition, in order."""


def new_run_id() -> str:
    """
    A name for one attempt to commit, by which its writer knows its own commit again.
    """
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class Growth:
    """
    A topic was first seen to have `count` partitions at `seen_ms`, in milliseconds of Unix time.
    """

    count: int
    seen_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """
    The position of a table in its topic: all records below the ends of `offsets` are in it, once.

    `offsets` is of every partition, [start, end) being what the stamped commit itself read; `batch` counts the commits;
    `removed` is the number of rows that the commit took away and put nothing in the place of, where Delta counts none.
    `rewritten` are ranges below the ends whose rows the commit made again from the log; it then read nothing else.
    `adopted` is of a table that somebody else made: where in each partition fluvial began to read for it. `growth` is
    of a table that does not read its topic's new partitions yet, which `offsets` then lacks. `schema` is the version of
    the contract that all rows are read as, and the newest there was. `skipped` are the offsets of records that a user
    had the table leave out, in this commit and in those before it. `erased` is the number of the last erasure
    (:mod:`fluvial.delta.erasures`) of which the table holds no row.
    """

    topic: str
    topic_id: str | None
    batch: int
    offsets: Mapping[int, Range]
    definition: str | None = None
    removed: int = 0
    rewritten: Mapping[int, Range] = field(default_factory=dict)
    adopted: Mapping[int, int] = field(default_factory=dict)
    growth: Growth | None = None
    schema: tuple[int, int] | None = None
    skipped: Skips = field(default_factory=dict)
    erased: int = 0
    run: str = field(default_factory=new_run_id)

    @property
    def app_id(self) -> str:
        """
        The name under which Delta counts a table's batches.
        """
        return f"fluvial/{self.topic}"

    @property
    def read(self) -> Mapping[int, Range]:
        """
        The ranges whose rows the commit wrote.
        """
        return self.rewritten or self.offsets

    def as_json(self) -> str:
        """
        The text for `userMetadata`.
        """
        offsets = {str(partition): list(span) for partition, span in sorted(self.offsets.items())}
        body: dict[str, Any] = {"topic": self.topic, "batch": self.batch, "offsets": offsets, "run": self.run}
        if self.topic_id is not None:
            body["topic_id"] = self.topic_id
        if self.definition is not None:
            body["definition"] = self.definition
        if self.removed:
            body["removed"] = self.removed
        if self.rewritten:
            body["rewritten"] = {str(partition): list(span) for partition, span in sorted(self.rewritten.items())}
        if self.adopted:
            body["adopted"] = {str(partition): start for partition, start in sorted(self.adopted.items())}
        if self.growth is not None:
            body["growth"] = {"partitions": self.growth.count, "seen": self.growth.seen_ms}
        if self.schema is not None:
            body["schema"] = list(self.schema)
        if self.skipped:
            body["skipped"] = {str(partition): list(offsets) for partition, offsets in sorted(self.skipped.items())}
        if self.erased:
            body["erased"] = self.erased
        return json.dumps({"fluvial": body})

    @classmethod
    def of(cls, commit: Commit) -> "Stamp | None":
        """
        The stamp of a commit; None for a commit that has none. Raises :class:`TableError` for one that is not as ours.
        """
        body = (commit.user_metadata or {}).get("fluvial")
        if not isinstance(body, dict) or "offsets" not in body:
            return None
        try:
            return cls._of_body(body)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            # Passed over, it would have the records that it counts read once more.
            raise TableError(
                f"version {commit.version} of the table stores its position in a format that this fluvial "
                f"does not support ({error!r}): if a newer fluvial wrote it, upgrade this one"
            ) from error

    @classmethod
    def _of_body(cls, body: Mapping[str, Any]) -> "Stamp":
        return cls(
            topic=body["topic"],
            topic_id=body.get("topic_id"),
            batch=body["batch"],
            offsets={int(partition): (span[0], span[1]) for partition, span in body["offsets"].items()},
            definition=body.get("definition"),
            removed=body.get("removed", 0),
            rewritten={int(partition): (span[0], span[1]) for partition, span in body.get("rewritten", {}).items()},
            adopted={int(partition): start for partition, start in body.get("adopted", {}).items()},
            growth=Growth(body["growth"]["partitions"], body["growth"]["seen"]) if "growth" in body else None,
            schema=(body["schema"][0], body["schema"][1]) if "schema" in body else None,
            skipped={int(partition): tuple(offsets) for partition, offsets in body.get("skipped", {}).items()},
            erased=body.get("erased", 0),
            run=body["run"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """
    Where a table stands: its newest version and the newest stamp; both None where there is no table.
    """

    version: int | None
    stamp: Stamp | None

    @property
    def ends(self) -> dict[int, int]:
        """
        For each partition the first offset that is not in the table.
        """
        return {} if self.stamp is None else {partition: end for partition, (_, end) in self.stamp.offsets.items()}


def read_position(log: TableLog, table: str, *, version: int | None = None) -> Position:
    """
    The position of a table, read back from its own log; with `version` that of an older one.

    Commits of others (OPTIMIZE, VACUUM, an ALTER) stand between stamped ones and are passed over. A RESTORE above the
    newest stamp took back rows which that stamp still counts, so it is refused, as is a table that no stamp is left of.
    Raises :class:`~fluvial.delta.errors.BrokenLogError` where the log lacks commits or parts of them.
    """
    log.check()
    if version is None:
        version = log.newest_version()
    if version is None:
        return Position(version=None, stamp=None)
    # Commits that came since are of another position.
    for commit in log.newest_first(until=version):
        stamp = Stamp.of(commit)
        if stamp is not None:
            return Position(version=version, stamp=stamp)
        if commit.operation == "RESTORE":
            raise TableError(
                f"{table} was restored to an earlier version (at version {commit.version}), so its offsets no longer "
                f"tell what it holds: `fluvial run --rebuild {table}` rebuilds it from the log"
            )
    raise TableError(
        f"{log.path} holds a Delta table that no run of fluvial wrote, or whose log was cleaned: "
        f"`fluvial table adopt {table}` adopts its rows; or move it away, and {table} is rebuilt "
        "from the log"
    )


def offsets_predicate(offsets: Mapping[int, Range]) -> str:
    """
    Return the SQL condition for the rows inside the ranges, one range a partition.

    Plain comparisons on two columns, so that Delta skips the files whose statistics lie outside. No range, no row.
    """
    ranges = [
        f"(_partition = {partition} AND _offset >= {start} AND _offset < {end})"
        for partition, (start, end) in sorted(offsets.items())
        if end > start
    ]
    return " OR ".join(ranges) or "false"
