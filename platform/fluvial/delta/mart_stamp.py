"""
The stamp of a pipeline's commits: the versions of the inputs that the table was made from, and by which road.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fluvial.delta.errors import TableError
from fluvial.delta.log import Commit, TableLog
from fluvial.delta.stamp import new_run_id

Road = Literal["full", "keys", "parts", "rows", "stream"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputVersion:
    """
    A version of an input, and the id of the commit that made it: a table made again counts its versions from 0.
    """

    version: int
    commit: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refresh:
    """
    How a table was brought to the versions of its inputs.

    `road` is "keys" where the rows of changed keys were replaced, "parts" where they were made from the changed rows
    alone but for `again` keys, "rows" where the transform ran over the changed rows, "stream" where a streaming query
    did, and "full" where it ran over the whole inputs, for `reason`. `keys` changed, by `changed` rows that came or
    went. It began at `began_ms` of Unix time. `costs` are those that were weighed, by keys, parts or rows and of the
    full query, in rows that this one reads and writes.
    """

    road: Road
    reason: str | None
    began_ms: int
    keys: int | None = None
    changed: int | None = None
    costs: tuple[int, int] | None = None
    again: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermarks:
    """
    How far the events of inputs with a watermark have come.

    `seen` has by input and by partition of its topic the greatest offset, and the greatest time in microseconds of Unix
    time, None where no row has one. `late` is the version of the table of late rows that goes with the inputs'
    versions, None in the stamp of that table itself; it has `rows`. Windows that ended at `final` or before, in
    microseconds, take no more rows; None where all may.
    """

    seen: Mapping[str, Mapping[int, tuple[int, int | None]]]
    rows: int
    late: InputVersion | None = None
    final: int | None = None

    def as_body(self) -> dict[str, Any]:
        """
        As a stamp has it.
        """
        body: dict[str, Any] = {
            "seen": {table: {str(each): list(at) for each, at in found.items()} for table, found in self.seen.items()},
            "rows": self.rows,
        }
        if self.late is not None:
            body["late"] = {"version": self.late.version, "commit": self.late.commit}
        if self.final is not None:
            body["final"] = self.final
        return body

    @classmethod
    def of_body(cls, body: Mapping[str, Any]) -> "Watermarks":
        """
        What a stamp says.
        """
        late = body.get("late")
        return cls(
            seen={
                table: {int(each): (at[0], at[1]) for each, at in found.items()}
                for table, found in body["seen"].items()
            },
            rows=body["rows"],
            late=None if late is None else InputVersion(version=late["version"], commit=late["commit"]),
            final=body.get("final"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MartStamp:
    """
    What a pipeline's table was made from: the version of each input by table, and the version of the code.

    `key` is how the key is declared: its `columns`, what leads to it in each input, and the windows. `batch` is the
    version that the commit makes, or a lower one that no earlier batch has, whoever else writes to the table. `removed`
    is the number of rows that the commit took away. `plan` is a fingerprint of the transform's plan where that was seen
    (:func:`~fluvial.tables.plan.row_by_row.look_row_by_row`), `checkpoint` names that of a streaming query.
    `watermarks` are those of inputs whose rows may be late.
    """

    pipeline: str
    code: str
    inputs: Mapping[str, InputVersion]
    key: Mapping[str, Any] | None = None
    refresh: Refresh | None = None
    batch: int = 0
    removed: int = 0
    plan: str | None = None
    checkpoint: str | None = None
    watermarks: Watermarks | None = None
    run: str = field(default_factory=new_run_id)

    @property
    def app_id(self) -> str:
        """
        The name under which Delta counts the table's batches.
        """
        return f"fluvial/marts/{self.pipeline}"

    def is_of(self, other: "MartStamp") -> bool:
        """
        Whether a table with the other stamp has the same rows: the same inputs, code and key.
        """
        return (self.pipeline, self.code, self.inputs, self.key) == (
            other.pipeline,
            other.code,
            other.inputs,
            other.key,
        )

    def as_json(self) -> str:
        """
        The text for `userMetadata`.
        """
        body: dict[str, Any] = {
            "pipeline": self.pipeline,
            "code": self.code,
            "inputs": {table: {"version": at.version, "commit": at.commit} for table, at in self.inputs.items()},
        }
        if self.key is not None:
            body["key"] = self.key
        if self.batch or self.key is not None:
            body["batch"] = self.batch
        if self.plan is not None:
            body["plan"] = self.plan
        if self.checkpoint is not None:
            body["checkpoint"] = self.checkpoint
        if self.watermarks is not None:
            body["watermarks"] = self.watermarks.as_body()
        if self.refresh is not None:
            refresh = self.refresh
            body["refresh"] = {"road": refresh.road, "began": refresh.began_ms}
            optional = {
                "reason": refresh.reason,
                "keys": refresh.keys,
                "changed": refresh.changed,
                "costs": refresh.costs,
                "again": refresh.again,
            }
            body["refresh"] |= {name: value for name, value in optional.items() if value is not None}
        if self.removed:
            body["removed"] = self.removed
        return json.dumps({"fluvial": {**body, "run": self.run}})

    @classmethod
    def of(cls, commit: Commit) -> "MartStamp | None":
        """
        The stamp of a commit; None for a commit that no pipeline made. Raises TableError for one that is not as ours.
        """
        body = (commit.user_metadata or {}).get("fluvial")
        if not isinstance(body, dict) or "pipeline" not in body:
            return None
        try:
            refresh = body.get("refresh")
            return cls(
                pipeline=body["pipeline"],
                code=body["code"],
                inputs={
                    table: InputVersion(version=at["version"], commit=at["commit"])
                    for table, at in body["inputs"].items()
                },
                key=body.get("key"),
                refresh=None
                if refresh is None
                else Refresh(
                    road=refresh["road"],
                    reason=refresh.get("reason"),
                    began_ms=refresh["began"],
                    keys=refresh.get("keys"),
                    changed=refresh.get("changed"),
                    costs=_pair(refresh.get("costs")),
                    again=refresh.get("again"),
                ),
                batch=body.get("batch", 0),
                removed=body.get("removed", 0),
                plan=body.get("plan"),
                checkpoint=body.get("checkpoint"),
                watermarks=Watermarks.of_body(body["watermarks"]) if "watermarks" in body else None,
                run=body["run"],
            )
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            raise TableError(
                f"version {commit.version} of the table says what it was made from in a format that this fluvial does "
                f"not support ({error!r}): if a newer fluvial wrote it, upgrade this one"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStamp:
    """
    The stamp of a batch that a streaming query puts into its table: Delta counts those of each checkpoint.
    """

    pipeline: str
    checkpoint: str
    batch: int
    removed: int = 0
    run: str = field(default_factory=new_run_id)

    @property
    def app_id(self) -> str:
        """
        The name under which Delta counts the batches of the checkpoint.
        """
        return f"fluvial/streams/{self.pipeline}/{self.checkpoint}"

    def as_json(self) -> str:
        """
        The text for `userMetadata`.
        """
        body = {"stream": self.pipeline, "checkpoint": self.checkpoint, "batch": self.batch, "run": self.run}
        return json.dumps({"fluvial": body})


def _pair(found: list[int] | None) -> tuple[int, int] | None:
    return None if found is None else (found[0], found[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """
    Where a pipeline's table stands: its newest commit that a pipeline made, and that one's stamp.
    """

    commit: Commit
    stamp: MartStamp


def newest_made(log: TableLog, *, above: int = -1, until: int | None = None) -> Made | None:
    """
    The newest commit of a pipeline above a version and not above `until`; None where there is none.
    """
    for commit in log.newest_first(above=above, until=until):
        stamp = MartStamp.of(commit)
        if stamp is not None:
            return Made(commit=commit, stamp=stamp)
    return None
