"""
Tables of pipelines as a run would make them of what is behind their inputs: their function is called with DataFrames of
the engine that answers, so that what it says is evaluated there.

Of a table with a key only the keys are made again that rows behind its inputs lead to, where nothing else has changed;
any other is made of its whole inputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import reduce
from typing import TYPE_CHECKING, Any

from fluvial.delta.errors import TableError
from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import MartStamp, newest_made
from fluvial.fresh import overlay
from fluvial.fresh.behind import Tail
from fluvial.fresh.errors import FreshError, StaleError
from fluvial.query.versions import Sources, Version
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.declarations import Declaration, DeclarationError, Pipeline
from fluvial.tables.plan.changed_keys import key_columns, keys_of, same_key
from fluvial.tables.refresh.pipeline_inputs import code_version, stamp_at, transformed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Step(StrEnum):
    """
    What is made for a table: all of its rows, the keys that changed, or the rows of these.
    """

    ALL = "all"
    KEYS = "keys"
    OF_KEYS = "of keys"


@dataclass(frozen=True, kw_only=True)
class Call:
    """
    A step for the table of a pipeline, as :class:`~fluvial.query.versions.MakesFrame` says; rows of `changed` came or
    went.
    """

    declaration: Pipeline
    step: Step
    changed: Sequence[str] = ()

    def __call__(self, frames: "Sequence[DataFrame]") -> Any:
        match self.step:
            case Step.ALL:
                return _called(self.declaration, frames)
            case Step.KEYS:
                return _keys_of_changes(self.declaration, self.changed, frames)
            case Step.OF_KEYS:
                return _of_keys(self.declaration, frames)

    def told(self) -> Mapping[str, Any]:
        declaration = self.declaration
        return {
            "table": declaration.table,
            "code": code_version(declaration),
            "step": self.step.value,
            "changed": [*self.changed],
        }

    @classmethod
    def of(cls, told: Mapping[str, Any], declarations: Mapping[str, Declaration]) -> "Call":
        """
        The call that was told, by this process's declarations.

        Raises :class:`~fluvial.fresh.errors.FreshError` where they are not those of the process that told it.
        """
        declaration = declarations.get(told["table"])
        if not isinstance(declaration, Pipeline) or code_version(declaration) != told["code"]:
            raise FreshError("the project has changed since this process began")
        return cls(declaration=declaration, step=Step(told["step"]), changed=told["changed"])


@dataclass(frozen=True, kw_only=True)
class FreshMart:
    """
    The table of a pipeline whose `inputs` are read at these versions, as :class:`~fluvial.query.versions.Newer` says.

    With `by_key` the table is that of the same versions of its inputs but for what is behind them.
    """

    declaration: Pipeline
    inputs: Mapping[str, Version]
    by_key: bool

    @property
    def number(self) -> int:
        """
        The offsets behind its inputs.
        """
        return sum(each.newer.number for each in self.inputs.values() if each.newer is not None)

    def why_spark(self, columns: Sequence[tuple[str, str]]) -> str | None:
        """
        None: what the function makes is judged where it is called.
        """
        return None

    def query(self, version: Version, sources: Sources) -> str:
        """
        The rows that the function makes, or the table's with those of the keys that changed.
        """
        types = dict(sources.columns(version.table, version.version))
        whole = [f"SELECT * FROM {sources.current(each)}" for each in self.inputs.values()]
        if not self.by_key:
            return overlay.cast(sources.made(self.declaration.name, self._call(Step.ALL), whole), types)
        changed = {table: each for table, each in self.inputs.items() if isinstance(each.newer, Tail)}
        rows = [each.newer.changed(each, sources) for each in changed.values() if isinstance(each.newer, Tail)]
        keys = sources.made(f"{self.declaration.name}_keys", self._call(Step.KEYS, *changed), rows)
        made = sources.made(self.declaration.name, self._call(Step.OF_KEYS), [*whole, f"SELECT * FROM {keys}"])
        old = sources.of(version.table, version.version)
        of_key = dict(zip(self.declaration.key, key_columns(self.declaration.key), strict=True))
        return f"{overlay.of_other_keys(of_key, old, keys, types)} UNION ALL {overlay.cast(made, types)}"

    def _call(self, step: Step, *changed: str) -> Call:
        return Call(declaration=self.declaration, step=step, changed=changed)


def fresh_mart(
    declaration: Pipeline, version: Version, inputs: Mapping[str, Version], warehouse: Warehouse
) -> FreshMart | None:
    """
    What is behind a version of a pipeline's table, whose inputs are read at these versions; None where nothing is.

    Raises :class:`~fluvial.fresh.errors.StaleError` for a table whose rows are not those of its inputs alone.
    """
    _check_kind(declaration)
    for table, each in inputs.items():
        if each.stale is not None and table not in declaration.pinned:
            raise StaleError(f"{table} is not fresh: {each.stale}")
    log = TableLog(None, warehouse.path(declaration.table))
    made = newest_made(log, until=version.version)
    if made is None:
        raise StaleError("no run of its pipeline made it")
    try:
        wanted = _stamp(declaration, inputs, warehouse)
    except (TableError, DeclarationError) as error:
        raise StaleError(str(error)) from error
    if (made.stamp.pipeline, made.stamp.code, made.stamp.key) != (wanted.pipeline, wanted.code, wanted.key):
        raise StaleError(f"its pipeline has changed since it was written: `fluvial run {declaration.table}`")
    behind = [table for table, each in inputs.items() if each.newer is not None]
    is_of_these = made.stamp.inputs == wanted.inputs
    if not behind and is_of_these:
        return None
    foreign = any(
        log.data_changes(commit.version) & {"add", "remove"}
        for commit in log.newest_first(above=made.commit.version, until=version.version)
    )
    leads = bool(declaration.key) and not declaration.validity
    by_key = leads and all(
        declaration.paths[table] is not None and isinstance(inputs[table].newer, Tail) for table in behind
    )
    return FreshMart(declaration=declaration, inputs=inputs, by_key=by_key and is_of_these and not foreign)


def mart_as_of(declaration: Pipeline, version: Version, inputs: Mapping[str, Version], warehouse: Warehouse) -> Version:
    """
    What the pipeline of a table makes of these versions of its inputs; `version` is the newest of the table.

    Raises :class:`~fluvial.fresh.errors.StaleError` as :func:`fresh_mart`.
    """
    _check_kind(declaration)
    made = newest_made(TableLog(None, warehouse.path(declaration.table)), until=version.version)
    if made is None or (made.stamp.pipeline, made.stamp.code) != (declaration.name, code_version(declaration)):
        raise StaleError(f"its pipeline has changed since it was written: `fluvial run {declaration.table}`")
    newer = FreshMart(declaration=declaration, inputs=inputs, by_key=False)
    return replace(version, newer=newer, of=[*inputs.values()], is_made=True)


def _check_kind(declaration: Pipeline) -> None:
    if declaration.output_mode is not None:
        raise StaleError("a streaming query makes it")
    if any(each.watermark is not None or each.emit == "final" for each in declaration.windows.values()):
        raise StaleError("a run judges which rows of its windows are late")


def _stamp(declaration: Pipeline, inputs: Mapping[str, Version], warehouse: Warehouse) -> MartStamp:
    """What a commit would say that is made of these versions."""
    commits = {table: TableLog(None, warehouse.path(table)).commit(each.version) for table, each in inputs.items()}
    return stamp_at(declaration, commits)


def _called(declaration: Pipeline, frames: "Sequence[DataFrame]") -> Any:
    laid = [declaration.in_windows(table, rows) for table, rows in zip(declaration.inputs, frames, strict=True)]
    return transformed(declaration, laid)


def _keys_of_changes(declaration: Pipeline, tables: Sequence[str], changes: "Sequence[DataFrame]") -> Any:
    """The keys that rows lead to which came to these inputs or went, each once."""
    found = []
    for table, rows in zip(tables, changes, strict=True):
        windows = declaration.windows.get(table)
        laid = rows if windows is None or windows.is_session else declaration.in_windows(table, rows)
        found.append(keys_of(laid, declaration.paths[table] or ()))
    return reduce(lambda one, other: one.unionAll(other), found).distinct()


def _of_keys(declaration: Pipeline, frames: "Sequence[DataFrame]") -> Any:
    """What the function makes of the rows of some keys, which are the last of the frames."""
    *rows, keys = frames
    return transformed(
        declaration, [_rows_of_keys(declaration, *each, keys) for each in zip(declaration.inputs, rows, strict=True)]
    )


def _rows_of_keys(declaration: Pipeline, table: str, rows: "DataFrame", keys: "DataFrame") -> "DataFrame":
    from pyspark.sql.functions import expr

    path, windows = declaration.paths[table], declaration.windows.get(table)
    if path is None:
        return rows
    # Sessions are made of all rows of their key, other windows are a part of it.
    laid = rows if windows is None or windows.is_session else declaration.in_windows(table, rows)
    chosen = laid.join(keys, expr(same_key(path)), "left_semi")
    return declaration.in_windows(table, chosen) if windows is not None and windows.is_session else chosen
