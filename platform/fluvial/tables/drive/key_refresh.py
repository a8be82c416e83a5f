"""
Bringing a table with a key to the newest versions of its inputs: by the keys that changed, or by the full query.

By keys, the rows that came to the inputs and went since the table's stamp name the keys; the transform runs over the
inputs' rows of these keys, and its answer takes the place of the table's rows of these keys in one commit, which
Delta refuses when another was first. A run that is killed leaves nothing, and the next one does the same. Where that
cannot be done, or would cost more, the full query runs, and the commit's stamp says why.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fluvial.delta.commit import KEYED_TABLE, commit_once, replace_table
from fluvial.delta.errors import TableError
from fluvial.delta.log import Commit, TableLog
from fluvial.delta.mart_stamp import MartStamp, Refresh, newest_made
from fluvial.delta.row_swap import FILE, ROW, WRITTEN, can_swap, located, swap_located
from fluvial.delta.upkeep import compact_files, is_due, write_checkpoint
from fluvial.spark.connect import is_client, parallelism, session_of_its_own
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.declarations import DeclarationError, Pipeline
from fluvial.tables.drive.pipeline_inputs import read_input, transformed, wanted_stamp
from fluvial.tables.plan.changed_keys import (
    ChangedKeys,
    UnreadableChangesError,
    changed_keys,
    check_commits,
    has_changes,
)
from fluvial.tables.plan.key_locality import check_key_locality, marked
from fluvial.tables.plan.result import RunResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ATTEMPTS_MAX = 8
KEYS_MIN = 1000
"""So many keys are always cheaper than the full query, or both are cheap."""
SHARE_MAX = 0.3
"""The changed keys for each row of the table above which the full query is cheaper: each of their rows is moved."""
KEYS_A_FILE = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """
    How a table is brought to the versions of `wanted`: by the keys that changed, or for a `reason` by the full query.

    `before` is the table's version. `changed` must be let go of (:meth:`release`).
    """

    wanted: MartStamp
    before: int | None
    changed: ChangedKeys | None
    reason: str | None

    def release(self) -> None:
        """
        Let Spark forget the keys.
        """
        if self.changed is not None:
            self.changed.frame.unpersist()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRefresh:
    """
    The refresh of one table with a key, in a session of the table's own.
    """

    declaration: Pipeline
    warehouse: Warehouse
    session: "SparkSession"

    @property
    def path(self) -> str:
        """
        Where the table lies.
        """
        return self.warehouse.path(self.declaration.table)

    @property
    def log(self) -> TableLog:
        """
        The table's log.
        """
        return TableLog(self.session, self.path)

    def plan(self, *, rebuild: bool = False) -> Plan:
        """
        Decide how; the commits of the inputs are read for it, no more.
        """
        wanted = wanted_stamp(self.declaration, self.warehouse, self.session)
        before = self.log.newest_version()
        changed, reason = None, "a rebuild was asked for" if rebuild else self._obstacle(wanted, before)
        if reason is None:
            try:
                changed = self._changed(wanted)
                reason = self._too_many(changed)
            except UnreadableChangesError as error:
                reason = str(error)
        if reason is not None and changed is not None:
            changed.frame.unpersist()
            changed = None
        return Plan(wanted=wanted, before=before, changed=changed, reason=reason)

    def answer(self, plan: Plan) -> "DataFrame":
        """
        What the transform makes of the inputs, or of their rows of the changed keys.

        Raises DeclarationError where it cannot be computed key by key.
        """
        frames = []
        for number, (table, at) in enumerate(plan.wanted.inputs.items()):
            frame = read_input(self.session, self.warehouse.path(table), at.version)
            path = self.declaration.paths[table]
            restricted = frame if plan.changed is None or path is None else plan.changed.of(frame, path)
            frames.append(marked(restricted, number))
        answer = transformed(self.declaration, frames)
        if not is_client(self.session):
            check_key_locality(self.declaration, frames, answer)
        return answer

    def carry_out(self, plan: Plan, began_ms: int) -> Commit | None:
        """
        Do it in one commit; None where another writer was first.
        """
        answer = self.answer(plan)
        if plan.changed is not None and not can_swap(self.session, self.path, answer):
            # Of one that was made before it had a key, or whose inputs got columns.
            whole = Plan(wanted=plan.wanted, before=plan.before, changed=None, reason="rows of the table's columns "
                         "cannot be replaced: it has others, or no deletion vectors")  # fmt: skip
            return self._write_whole(self.answer(whole), whole, began_ms)
        if plan.changed is None:
            return self._write_whole(answer, plan, began_ms)
        return self._swap(answer, plan, plan.changed, began_ms)

    def _obstacle(self, wanted: MartStamp, before: int | None) -> str | None:
        """Why the full query must run, as far as it is known before changes are read."""
        made = None if before is None else newest_made(self.log)
        if made is None:
            return "the table is new" if before is None else "no pipeline made the table"
        stamp = made.stamp
        reasons = {
            "it was made from other inputs": stamp.pipeline != wanted.pipeline
            or stamp.inputs.keys() != wanted.inputs.keys(),
            "the code has changed": stamp.code != wanted.code,
            "the key is declared in another way": stamp.key != wanted.key,
            "a client of Spark Connect cannot read which rows changed": is_client(self.session),
        }
        for commit in self.log.newest_first(above=made.commit.version):
            is_foreign = bool(self.log.data_changes(commit.version) & {"add", "remove"})
            reasons[f"version {commit.version} of the table is not fluvial's ({commit.operation})"] = is_foreign
        return next((reason for reason, holds in reasons.items() if holds), None)

    def _changed(self, wanted: MartStamp) -> ChangedKeys:
        made = newest_made(self.log)
        assert made is not None, "there is no obstacle"
        since, until = made.stamp.inputs, {table: at.version for table, at in wanted.inputs.items()}
        logs = {table: TableLog(self.session, self.warehouse.path(table)) for table in until}
        for table, path in self.declaration.paths.items():
            if path is not None:
                check_commits(logs[table], table, since[table], until[table])
            elif has_changes(logs[table], table, since[table], until[table]):
                raise UnreadableChangesError(f"{table}, which is read whole, has changed")
        return changed_keys(self.session, self.declaration, logs, since, until)

    def _too_many(self, changed: ChangedKeys) -> str | None:
        if changed.keys <= KEYS_MIN:
            return None
        rows = self.session.read.format("delta").load(self.path).count()
        if changed.keys <= SHARE_MAX * rows:
            return None
        return f"{changed.keys:,} keys changed, and the table has {rows:,} rows: the full query is cheaper"

    def _write_whole(self, answer: "DataFrame", plan: Plan, began_ms: int) -> Commit | None:
        before = plan.before
        if before is not None:
            before = self._with_vectors(before)
        stamp = replace(
            plan.wanted,
            batch=0 if before is None else before + 1,
            refresh=Refresh(road="full", reason=plan.reason, began_ms=began_ms),
        )
        return commit_once(
            self.log, stamp, above=before, write=lambda: replace_table(answer, self.path, stamp, KEYED_TABLE)
        )

    def _with_vectors(self, before: int) -> int:
        """Have a table that was made without them take deletion vectors; its version then."""
        name = "delta.enableDeletionVectors"
        found = self.session.sql(f"SHOW TBLPROPERTIES delta.`{self.path}` ('{name}')").collect()
        if found and found[0]["value"] == "true":
            return before
        self.session.sql(f"ALTER TABLE delta.`{self.path}` SET TBLPROPERTIES ('{name}' = 'true')")
        return self.log.newest_version() or before

    def _swap(self, answer: "DataFrame", plan: Plan, changed: ChangedKeys, began_ms: int) -> Commit | None:
        assert plan.before is not None, "rows are replaced in a table that is there"
        version, key = plan.before, self.declaration.key
        stamp = replace(
            plan.wanted,
            batch=version + 1,
            refresh=Refresh(road="keys", reason=None, began_ms=began_ms, keys=changed.keys, changed=changed.rows),
        )
        old = changed.of(located(self.session, self.path, version), [f"`{column}`" for column in key])
        columns = [f"`{name}`" for name in old.columns if name not in {FILE, ROW}]
        answer = answer.persist()
        try:
            self._check_keys(answer, changed)
            came = answer.selectExpr(
                *columns, f"CAST(NULL AS STRING) AS {FILE}", f"CAST(NULL AS BIGINT) AS {ROW}", f"true AS {WRITTEN}"
            )
            rows = came.unionAll(old.selectExpr(*columns, FILE, ROW, f"false AS {WRITTEN}"))
            files = max(1, min(parallelism(self.session), changed.keys // KEYS_A_FILE))

            def write() -> None:
                swap_located(self.session, self.path, rows, version=version, stamp=stamp, files=files)

            return commit_once(self.log, stamp, above=version, write=write)
        finally:
            answer.unpersist()

    def _check_keys(self, answer: "DataFrame", changed: ChangedKeys) -> None:
        other = changed.not_of(answer, [f"`{column}`" for column in self.declaration.key]).first()
        if other is not None:
            shown = ", ".join(f"{column} {other[column]}" for column in self.declaration.key)
            raise DeclarationError(
                f'pipeline("{self.declaration.name}") returned a row of a key that it had no rows of ({shown}): '
                "have each row keep the key of the rows that it is made of, or leave key out"
            )


def refresh_by_keys(
    declaration: Pipeline,
    warehouse: Warehouse,
    spark: "SparkSession",
    say: Callable[[str], None],
    *,
    rebuild: bool = False,
) -> RunResult:
    """
    Bring a table with a key to the newest versions of its inputs.
    """
    with session_of_its_own(spark) as session:
        refresh = KeyRefresh(declaration=declaration, warehouse=warehouse, session=session)
        for _ in range(ATTEMPTS_MAX):
            began_ms = time.time_ns() // 1_000_000
            plan = refresh.plan(rebuild=rebuild)
            with ExitStack() as opened:
                opened.callback(plan.release)
                if plan.changed is None:
                    say(f"{declaration.table}: the full query, because {plan.reason}")
                else:
                    say(f"{declaration.table}: {plan.changed.keys:,} keys changed by {plan.changed.rows:,} rows")
                commit = refresh.carry_out(plan, began_ms)
            if commit is None:
                say(f"{declaration.table}: another run was first; planning again")
                continue
            if is_due(commit.version) and not is_client(session):
                write_checkpoint(session, refresh.path)
                compact_files(session, refresh.path)
            stamp = MartStamp.of(commit)
            return RunResult(
                table=declaration.table,
                kind=declaration.kind,
                skipped=False,
                version_before=plan.before,
                version_after=commit.version,
                inputs={table: each.version for table, each in plan.wanted.inputs.items()},
                rows=commit.metric("numOutputRows") + (0 if stamp is None else stamp.removed),
                bytes=commit.metric("numOutputBytes"),
            )
    raise TableError(
        f"{declaration.table}: other runs were first {ATTEMPTS_MAX} times in a row; stop them and run again"
    )
