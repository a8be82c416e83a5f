"""
How many rows of a table fail, kept up by looking at the rows that were added.

Whether a row fails an expectation such as `ExpectColumnValuesToNotBeNull` depends on that row alone. So of a table that
only grows the count as of one version and the rows added since give the count as of a later one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fluvial.delta.errors import TableError
from fluvial.delta.log import TableLog
from fluvial.delta.stamp import Stamp
from fluvial.quality.batch import Batch, OffsetRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """
    The rows of a table as of `version`, and for each row-level expectation of a suite those of them that fail it.

    `commit` is Delta's id of that version, `ends` for each partition the first offset that is not in the table, and
    `suite` the fingerprint of the suite.
    """

    version: int
    commit: str | None
    suite: str
    ends: Mapping[int, int]
    rows: int
    failing: Mapping[str, int]

    def as_json(self) -> dict[str, Any]:
        """For a place that stores JSON."""
        return {
            "version": self.version,
            "commit": self.commit,
            "suite": self.suite,
            "ends": {str(partition): end for partition, end in sorted(self.ends.items())},
            "rows": self.rows,
            "failing": dict(self.failing),
        }

    @classmethod
    def of_json(cls, stored: Any) -> "Counts | None":
        """Read back what `as_json` made; None for anything else."""
        try:
            return cls(**{**stored, "ends": {int(partition): end for partition, end in stored["ends"].items()}})
        except (TypeError, KeyError, ValueError, AttributeError):
            return None


def ends_of(log: TableLog, version: int) -> dict[int, int]:
    """Return for each partition the first offset that is not in a version; nothing where no run of fluvial wrote it."""
    stamps = (Stamp.of(commit) for commit in log.newest_first() if commit.version <= version)
    stamp = next(filter(None, stamps), None)
    return {} if stamp is None else {partition: end for partition, (_, end) in stamp.offsets.items()}


def added_since(log: TableLog, counts: Counts) -> Batch | None:
    """
    Return the rows that runs have added to a table since it was counted; None where more than that has changed in it.

    Rows deleted, replaced, or written by others, a change of the columns, a table that was made again: all of them, and
    a log that does not go back that far, mean that the whole table is to be counted.
    """
    try:
        if log.commit(counts.version).txn_id != counts.commit:
            return None
        commits = list(log.newest_first(above=counts.version))
        newest = commits[0] if commits else log.commit(counts.version)
        if newest.version != counts.version + len(commits):
            return None
        ends = dict(counts.ends)
        added: dict[int, OffsetRange] = {}
        for commit in reversed(commits):
            changed = log.data_changes(commit.version)
            stamp = Stamp.of(commit)
            if changed - {"add"} or (changed and stamp is None):
                return None
            for partition, (start, end) in (stamp.read if stamp is not None else {}).items():
                if ends.get(partition, start) != start:
                    return None
                ends[partition] = end
                if end > start:
                    added[partition] = (added.get(partition, (start, end))[0], end)
    except TableError:
        return None
    return Batch(path=log.path, version=newest.version, commit=newest.txn_id, offsets=added)
