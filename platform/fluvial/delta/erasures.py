"""
The keys that a warehouse has erased, and up to where in their topic: a small Delta table beside the others.

The log may hold records of such a key for as long as its retention says, and a table that is built from the log would
bring them back. So whatever reads a topic into a table leaves out the records that an erasure covers. A key is listed
by its SHA-256, never by itself.
"""

import hashlib
import json
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fluvial.delta.commit import ATTEMPTS_MAX, commit_once, commit_options
from fluvial.delta.errors import OvertakenError, TableError
from fluvial.delta.log import TableLog
from fluvial.delta.recent import Recent
from fluvial.delta.rows import read_rows
from fluvial.delta.snapshot import read_snapshot
from fluvial.delta.stamp import new_run_id
from fluvial.delta.upkeep import compact_files
from fluvial.spark.connect import session_of_its_own

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = "_erased"
_COLUMNS = "number BIGINT, topic STRING, topic_id STRING, digest STRING, before STRING, ended STRING, asked_ms BIGINT"
# Lists of so many warehouses as a process may reasonably work on; what an entry takes is a few hundred bytes.
_KNOWN: "Recent[tuple[tuple[int, str | None], tuple[Erasure, ...]]]" = Recent(16 << 20)
_BYTES_EACH = 500
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:", re.IGNORECASE)

Places = Mapping[int, int]
"""By partition, the first offset that an erasure does not cover."""


def digest_of(key: bytes) -> str:
    """
    What a record key is listed by: its SHA-256 in hexadecimal digits, as Spark's `sha2(key, 256)` gives it.
    """
    return hashlib.sha256(key).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """
    One erasure: of the records of a topic with this key all that lie `before` these offsets.

    `ended` has the partitions in which a tombstone is the last record that it covers. `asked_ms` is in milliseconds of
    Unix time. Numbers rise; a later erasure of the same key covers what the earlier one does.
    """

    number: int
    topic: str
    topic_id: str | None
    digest: str
    before: Places
    ended: tuple[int, ...]
    asked_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasures:
    """
    The erasures of one topic, in the order of their numbers.
    """

    known: tuple[Erasure, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.known)

    @property
    def newest(self) -> int:
        """
        The number of the last one, 0 for none.
        """
        return self.known[-1].number if self.known else 0

    def after(self, number: int) -> "Erasures":
        """
        Those with a higher number.
        """
        return Erasures(known=tuple(each for each in self.known if each.number > number))

    def until(self, number: int) -> "Erasures":
        """
        Those with at most this number.
        """
        return Erasures(known=tuple(each for each in self.known if each.number <= number))

    def of(self, digest: str) -> Erasure | None:
        """
        The last one of a key.
        """
        return next((each for each in reversed(self.known) if each.digest == digest), None)

    def last_of_each(self) -> list[Erasure]:
        """
        For each key its last erasure.
        """
        return list({each.digest: each for each in self.known}.values())

    def places(self) -> dict[str, Places]:
        """
        What is covered, by the keys' digests.
        """
        return {each.digest: each.before for each in self.last_of_each()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _ListStamp:
    """What a commit of the list says of itself."""

    batch: int
    run: str = field(default_factory=new_run_id)

    @property
    def app_id(self) -> str:
        return "fluvial/erasures"

    def as_json(self) -> str:
        return json.dumps({"fluvial": {"erasure": self.batch, "batch": self.batch, "run": self.run}})


def read_erasures(spark: "SparkSession | None", root: str, topic: str, topic_id: str | None) -> Erasures:
    """
    The erasures of a topic in the warehouse at `root`; those of an earlier topic of its name are not among them.

    Costs a look into one folder while the list has not changed. Raises :class:`TableError` for a list that is damaged.
    """
    return Erasures(
        known=tuple(
            each
            for each in _all(spark, f"{root}/{FOLDER}")
            if each.topic == topic and (not each.topic_id or not topic_id or each.topic_id == topic_id)
        )
    )


def add_erasure(
    spark: "SparkSession",
    root: str,
    *,
    topic: str,
    topic_id: str | None,
    digest: str,
    before: Places,
    ended: Iterable[int],
) -> Erasure:
    """
    List one more erasure, in one commit. From then on no run brings back what it covers.
    """
    path = f"{root}/{FOLDER}"
    log = TableLog(spark, path)
    for _ in range(ATTEMPTS_MAX):
        version = log.newest_version()
        number = max((each.number for each in _all(spark, path)), default=0) + 1
        entry = Erasure(
            number=number,
            topic=topic,
            topic_id=topic_id,
            digest=digest,
            before=dict(sorted(before.items())),
            ended=tuple(sorted(ended)),
            asked_ms=time.time_ns() // 1_000_000,
        )
        stamp = _ListStamp(batch=number)
        rows = spark.createDataFrame([_row(entry)], _COLUMNS).coalesce(1)
        write = rows.write.format("delta").mode("append").options(**commit_options(stamp))
        if commit_once(log, stamp, above=version, write=lambda: write.save(path)) is not None:  # noqa: B023
            with session_of_its_own(spark) as session:
                compact_files(session, path)
            return entry
    raise OvertakenError("the list of erased keys", ATTEMPTS_MAX)


def _row(entry: Erasure) -> tuple[Any, ...]:
    before = json.dumps({str(partition): offset for partition, offset in entry.before.items()})
    ended = json.dumps(list(entry.ended))
    return (entry.number, entry.topic, entry.topic_id, entry.digest, before, ended, entry.asked_ms)


def _all(spark: "SparkSession | None", path: str) -> tuple[Erasure, ...]:
    log = TableLog(spark, path)
    version = log.newest_version()
    if version is None:
        return ()
    # A warehouse that was made again counts its versions from 0.
    identity = (version, log.commit(version).txn_id)
    known = _KNOWN.get(path)
    if known is not None and known[0] == identity:
        return known[1]
    rows = _rows(spark, path, version)
    try:
        found = tuple(sorted(map(_entry, rows), key=lambda each: each.number))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TableError(
            f"{path}, the list of erased keys, has an entry that this fluvial does not understand ({error!r}): if a "
            "newer fluvial wrote it, upgrade this one"
        ) from error
    _KNOWN.put(path, (identity, found), _BYTES_EACH * max(len(found), 1))
    return found


def _rows(spark: "SparkSession | None", path: str, version: int) -> list[Mapping[str, Any]]:
    if not _SCHEME.match(path):
        snapshot = read_snapshot(path, version)
        assert snapshot is not None, "it has a version"
        rows: list[Mapping[str, Any]] = read_rows(path, snapshot, snapshot.added).to_pylist()
        return rows
    assert spark is not None, "a table elsewhere is read through Spark"
    frame = spark.read.format("delta").option("versionAsOf", str(version)).load(path)
    return [row.asDict() for row in frame.collect()]


def _entry(row: Mapping[str, Any]) -> Erasure:
    return Erasure(
        number=row["number"],
        topic=row["topic"],
        topic_id=row["topic_id"],
        digest=row["digest"],
        before={int(partition): offset for partition, offset in json.loads(row["before"]).items()},
        ended=tuple(json.loads(row["ended"])),
        asked_ms=row["asked_ms"],
    )
