"""
Bringing a table without a key to the newest versions of its inputs: by the rows that changed, or by the full query.

Where each row of the answer is made of one row of an input that changed, the transform runs over the rows that came and
over those that went. What it makes of the first is added, and of each row that it makes of the others one like it is
marked as gone, in one commit that Delta refuses when another was first. Where no row went, it is an append.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from fluvial.delta.commit import ATTEMPTS_MAX, TABLE, commit_once, replace_table
from fluvial.delta.errors import OvertakenError
from fluvial.delta.log import Commit, TableLog
from fluvial.delta.mart_stamp import MartStamp, Refresh
from fluvial.delta.row_swap import FILE, ROW, WRITTEN, located, swap_persisted, swap_rows
from fluvial.delta.upkeep import compact_files, is_due
from fluvial.spark.connect import is_client, parallelism, session_of_its_own
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.declarations import Pipeline
from fluvial.tables.plan.changed_keys import UnreadableChangesError, explain_lost_changes
from fluvial.tables.plan.result import RunResult
from fluvial.tables.refresh.comparison import comparable
from fluvial.tables.refresh.mart_look import refreshed
from fluvial.tables.refresh.obstacles import have_vectors
from fluvial.tables.refresh.row_plan import RowPlan, RowPlanner
from fluvial.tables.refresh.rows_here import TableHere

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_A_FILE = 50_000
"""Of so many changed rows a refresh writes one more file."""
# How often a row came, less how often it went; the number of a row among those like it.
_NET, _NUMBER = "_fluvial_net", "_fluvial_number"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRefresh:
    """
    The refresh of one table without a key, in a session of the table's own.
    """

    declaration: Pipeline
    warehouse: Warehouse
    session: "SparkSession"

    @property
    def log(self) -> TableLog:
        """
        The table's log.
        """
        return TableLog(self.session, self.warehouse.path(self.declaration.table))

    def plan(self, *, rebuild: bool = False) -> RowPlan:
        """
        Decide how (:class:`~fluvial.tables.refresh.row_plan.RowPlanner`).
        """
        planner = RowPlanner(declaration=self.declaration, warehouse=self.warehouse, session=self.session)
        return planner.plan(rebuild=rebuild)

    def carry_out(self, plan: RowPlan, began_ms: int) -> Commit | None:
        """
        Do it in one commit; None where another writer was first.
        """
        try:
            if plan.came is not None:
                with explain_lost_changes():
                    return self._by_rows(plan, plan.came, began_ms)
        except UnreadableChangesError as error:
            plan = replace(plan, came=None, gone=None, reason=str(error))
        return self._write_whole(plan, began_ms)

    def _write_whole(self, plan: RowPlan, began_ms: int) -> Commit | None:
        stamp = replace(
            plan.wanted,
            batch=0 if plan.before is None else plan.before + 1,
            refresh=Refresh(road="full", reason=plan.reason, began_ms=began_ms, costs=plan.costs),
        )
        log = self.log
        own = (
            None if plan.before is None else TableHere(session=self.session, path=log.path, version=plan.before, key=())
        )
        if own is not None and own.takes(plan.answer):
            rows = own.replaced_by(plan.answer)
            return commit_once(log, stamp, above=plan.before, write=lambda: own.put(rows, stamp))
        return commit_once(
            log, stamp, above=plan.before, write=lambda: replace_table(plan.answer, log.path, stamp, TABLE)
        )

    def _by_rows(self, plan: RowPlan, came: "DataFrame", began_ms: int) -> Commit | None:
        assert plan.before is not None, "rows are added to a table that is there"
        assert plan.work is not None, "the changed rows were weighed"
        log = self.log
        version = plan.before if plan.gone is None else have_vectors(self.session, log, plan.before)
        stamp = replace(
            plan.wanted,
            batch=version + 1,
            refresh=Refresh(road="rows", reason=None, began_ms=began_ms, changed=plan.work.changed, costs=plan.costs),
        )
        files = max(1, min(parallelism(self.session), plan.work.changed // ROWS_A_FILE))
        columns = self.session.read.format("delta").load(log.path).columns
        came = came.select(*(f"`{name}`" for name in columns))
        if plan.gone is None:

            def add() -> None:
                swap_rows(self.session, log.path, came, {}, version=version, stamp=stamp, files=files)

            return commit_once(log, stamp, above=version, write=add)
        net = _net(came, plan.gone.select(*came.columns)).persist()
        rows = self._replacing(net, version).persist()
        try:
            wanted = net.selectExpr(f"coalesce(sum(greatest(-{_NET}, 0)), 0)").collect()[0][0]
            found = rows.where(f"{FILE} IS NOT NULL").count()
            if found != wanted:
                raise UnreadableChangesError(f"{wanted:,} rows are to go, and the table has {found:,} of them")

            def swap() -> None:
                swap_persisted(self.session, log.path, rows, version=version, stamp=stamp, files=files)

            return commit_once(log, stamp, above=version, write=swap)
        finally:
            rows.unpersist()
            net.unpersist()

    def _replacing(self, net: "DataFrame", version: int) -> "DataFrame":
        """The rows to write, and those of the table to take away, as `swap_persisted` wants them."""
        from pyspark.sql.functions import expr

        columns = [f"`{name}`" for name in net.columns if name not in {_NET, *_likes(net)}]
        written = net.where(f"{_NET} > 0").selectExpr(*columns, f"explode(sequence(1L, {_NET})) AS {_NUMBER}")
        written = written.drop(_NUMBER).selectExpr(
            "*", f"CAST(NULL AS STRING) AS {FILE}", f"CAST(NULL AS BIGINT) AS {ROW}", f"true AS {WRITTEN}"
        )
        path = self.warehouse.path(self.declaration.table)
        old = located(self.session, path, version)
        kept = [f"`{name}`" for name in old.columns]
        old = old.selectExpr(*kept, *(f"{comparable(old, name)} AS {like}" for name, like in _pairs(old)))
        going = net.where(f"{_NET} < 0").select(_NET, *_likes(net))
        likes = _likes(net)
        same = reduce(lambda one, other: one & other, (old[like].eqNullSafe(going[like]) for like in likes))
        matched = old.join(going, same).select(*(old[name] for name in old.columns), going[_NET])
        numbered = matched.withColumn(
            _NUMBER, expr(f"row_number() OVER (PARTITION BY {', '.join(likes)} ORDER BY {FILE}, {ROW})")
        )
        gone = numbered.where(f"{_NUMBER} <= -{_NET}").selectExpr(*kept, f"false AS {WRITTEN}")
        return written.unionByName(gone)


def _pairs(frame: "DataFrame") -> list[tuple[str, str]]:
    """The columns of a frame, each with the name of its form that can be compared."""
    own = [name for name in frame.columns if name not in {FILE, ROW, _NET}]
    return [(name, f"_fluvial_like_{index}") for index, name in enumerate(own)]


def _likes(net: "DataFrame") -> list[str]:
    return [name for name in net.columns if name.startswith("_fluvial_like_")]


def _net(came: "DataFrame", gone: "DataFrame") -> "DataFrame":
    """
    The different rows of both, with what they are compared by, and how much more often each came than it went.
    """
    from pyspark.sql.functions import expr

    together = came.selectExpr("*", f"1L AS {_NET}").unionAll(gone.selectExpr("*", f"-1L AS {_NET}"))
    pairs = _pairs(came)
    likes = [f"{comparable(came, name)} AS {like}" for name, like in pairs]
    columns = [expr(f"first(`{name}`) AS `{name}`") for name in came.columns]
    grouped = together.selectExpr("*", *likes).groupBy(*(like for _, like in pairs))
    return grouped.agg(*columns, expr(f"sum({_NET}) AS {_NET}")).where(f"{_NET} <> 0")


def refresh_by_rows(
    declaration: Pipeline,
    warehouse: Warehouse,
    spark: "SparkSession",
    say: Callable[[str], None],
    *,
    rebuild: bool = False,
) -> RunResult:
    """
    Bring a table without a key to the newest versions of its inputs.
    """
    with session_of_its_own(spark) as session:
        refresh = RowRefresh(declaration=declaration, warehouse=warehouse, session=session)
        for _ in range(ATTEMPTS_MAX):
            began_ms = time.time_ns() // 1_000_000
            plan = refresh.plan(rebuild=rebuild)
            if plan.came is None:
                say(f"{declaration.table}: the full query, because {plan.reason}")
            elif plan.work is not None:
                say(f"{declaration.table}: from {plan.work.changed:,} changed rows")
            commit = refresh.carry_out(plan, began_ms)
            if commit is None:
                say(f"{declaration.table}: another run was first; planning again")
                continue
            stamp = MartStamp.of(commit)
            is_whole = stamp is None or stamp.refresh is None or stamp.refresh.road == "full"
            if not is_whole and is_due(commit.version) and not is_client(session):
                compact_files(session, refresh.log.path)
            return refreshed(declaration, plan.wanted, plan.before, commit)
    raise OvertakenError(declaration.table, ATTEMPTS_MAX)
