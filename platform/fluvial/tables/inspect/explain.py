"""
How a pipeline's table would be brought to the newest versions of its inputs, and what the last refresh did.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from fluvial.delta.failures import explain_failures
from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import Made, Road, newest_made
from fluvial.spark.connect import is_client, session_of_its_own
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.declarations import Declaration, DeclarationError, Pipeline
from fluvial.tables.refresh.key_plan import Plan, Some
from fluvial.tables.refresh.key_refresh import KeyRefresh
from fluvial.tables.refresh.late_table import late_table_of
from fluvial.tables.refresh.pipeline_inputs import read_input, wanted_stamp
from fluvial.tables.refresh.row_plan import RowPlanner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fluvial.config import Settings

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """
    What a refresh would read of an input: the rows of the changed keys at version `until`, or the whole of it, or with
    `only_changes` no more than the rows that came and went.

    `since` is the version that the table was made from, None where there is none. `files` are those that may hold such
    rows, and how many there are; None where all are read.
    """

    table: str
    whole: bool
    since: int | None
    until: int
    files: tuple[int, int] | None = None
    only_changes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Last:
    """
    What the newest refresh did: `rows` and `bytes` written, `removed` rows taken away, in `seconds`.

    `road`, `reason`, `keys`, `changed`, `costs` and `again` are as in its stamp; None where it had no key.
    """

    version: int
    road: Road
    reason: str | None
    keys: int | None
    changed: int | None
    costs: tuple[int, int] | None
    rows: int
    removed: int
    bytes: int
    seconds: float | None
    again: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """
    The road that the next refresh takes, "none" where nothing has changed, and for what `reason` no better one.

    `keys` changed by `changed` rows; of an aggregate the keys are not looked for, and the rows are about so many.
    `costs` are those that were weighed, by keys or from the changed rows and of the full query; None where nothing was.
    `again` says of an aggregate's fields when the rows of a key are read. `looked_up` has, of a table that can follow
    the changed rows of some inputs, the other ones and why a change of theirs runs the full query. `watermarks` has for
    inputs with one where it is, by partition of the topic (UTC), and `late` the table of late rows and their number, as
    the last refresh left them; windows that are only there when they are final are so until `final`.
    """

    table: str
    road: Road | Literal["none"]
    reason: str | None
    reads: tuple[Read, ...]
    keys: int | None
    changed: int | None
    last: Last | None
    costs: tuple[int, int] | None = None
    again: tuple[str, ...] = ()
    looked_up: Mapping[str, str] = field(default_factory=dict)
    has_key: bool = True
    watermarks: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    late: tuple[str, int] | None = None
    final: str | None = None


def explain(declaration: Declaration, settings: "Settings", spark: "SparkSession") -> Explanation:
    """
    Say what a refresh of a pipeline's table would do; the inputs' commits are read for it, and nothing is written.

    Raises DeclarationError for another table, and for a transform that cannot be computed by its key.
    """
    if not isinstance(declaration, Pipeline):
        raise DeclarationError(f"{declaration.table} is made from a topic, of which it reads the new records: only "
                               "tables of pipelines are explained")  # fmt: skip
    warehouse = Warehouse.at(settings.warehouse)
    with explain_failures(declaration.table, warehouse.path(declaration.table)):
        log = TableLog(spark, warehouse.path(declaration.table))
        log.check()
        made = newest_made(log)
        if declaration.output_mode is not None:
            return _of_stream(declaration, warehouse, spark, made)
        if not declaration.key:
            return _by_rows(declaration, warehouse, spark, made)
        return _by_key(declaration, warehouse, spark, made)


def _of_stream(declaration: Pipeline, warehouse: Warehouse, spark: "SparkSession", made: Made | None) -> Explanation:
    wanted = wanted_stamp(declaration, warehouse, spark)
    is_new = made is None or not made.stamp.is_of(wanted)
    until = {table: at.version for table, at in wanted.inputs.items()}
    return Explanation(
        table=declaration.table,
        road="stream" if is_new else "none",
        reason=None,
        reads=_reads(declaration, made, until, set(), changes_of=declaration.inputs),
        keys=None,
        changed=None,
        last=_last(made),
        has_key=False,
    )


def _by_rows(declaration: Pipeline, warehouse: Warehouse, spark: "SparkSession", made: Made | None) -> Explanation:
    with session_of_its_own(spark) as session:
        planner = RowPlanner(declaration=declaration, warehouse=warehouse, session=session)
        plan = planner.plan()
        is_new = made is None or not made.stamp.is_of(plan.wanted)
        flowing = {} if is_client(session) else planner.flowing()
    refusals = [*dict.fromkeys(filter(None, flowing.values()))]
    # Of a table that is up to date, what would run the full query if any input changed.
    never = next(iter(refusals), None) if None not in flowing.values() else None
    by_rows = plan.came is not None
    return Explanation(
        table=declaration.table,
        road="none" if not is_new else "rows" if by_rows else "full",
        reason=plan.reason if is_new and not by_rows and made is not None else never,
        reads=_reads(
            declaration,
            made,
            {table: at.version for table, at in plan.wanted.inputs.items()},
            set(),
            changes_of=plan.changed if by_rows else (),
        ),
        keys=None,
        changed=plan.work.changed if by_rows and is_new and plan.work else None,
        last=_last(made),
        costs=plan.costs if is_new else None,
        looked_up={} if never is not None else {table: why for table, why in flowing.items() if why},
        has_key=False,
    )


def _by_key(declaration: Pipeline, warehouse: Warehouse, spark: "SparkSession", made: Made | None) -> Explanation:
    with session_of_its_own(spark) as session:
        refresh = KeyRefresh(declaration=declaration, warehouse=warehouse, session=session)
        plan = refresh.plan()
        try:
            answer = refresh.answer(plan)
            only_came = not is_client(session) and refresh.own_values(answer, plan) is not None
            again = _again(declaration, refresh, plan)
        finally:
            plan.release()
    changed = plan.changed
    is_new = made is None or not made.stamp.is_of(plan.wanted)
    only_came |= plan.road == "parts"
    restricted = (
        set()
        if changed is None or only_came
        else {table for table, path in declaration.paths.items() if path is not None}
    )
    return Explanation(
        table=declaration.table,
        road=plan.road if is_new else "none",
        # Where nothing has changed there was nothing to weigh.
        reason=plan.reason if is_new or plan.costs is None else None,
        reads=_reads(
            declaration,
            made,
            {table: at.version for table, at in plan.wanted.inputs.items()},
            restricted,
            plan.pruned,
            changes_of=declaration.inputs if only_came else (),
        ),
        keys=None if changed is None else changed.keys,
        changed=changed.rows
        if changed is not None
        else plan.work.changed
        if plan.road == "parts" and plan.work
        else None,
        last=_last(made),
        costs=plan.costs if is_new else None,
        again=again,
        watermarks=_watermarks(declaration, made),
        late=_late(declaration, made),
        final=_final(made),
    )


def _watermarks(declaration: Pipeline, made: Made | None) -> dict[str, dict[int, str]]:
    """Where the watermark of each partition is."""
    found: dict[str, dict[int, str]] = {}
    marks = None if made is None else made.stamp.watermarks
    for table, seen in ({} if marks is None else marks.seen).items():
        windows = declaration.windows.get(table)
        if windows is not None and windows.watermark is not None:
            found[table] = {
                partition: _shown(_EPOCH + timedelta(microseconds=time) - windows.watermark)
                for partition, (_, time) in sorted(seen.items())
                if time is not None
            }
    return found


def _final(made: Made | None) -> str | None:
    marks = None if made is None else made.stamp.watermarks
    return None if marks is None or marks.final is None else _shown(_EPOCH + timedelta(microseconds=marks.final))


def _shown(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _late(declaration: Pipeline, made: Made | None) -> tuple[str, int] | None:
    marks = None if made is None else made.stamp.watermarks
    return None if marks is None else (late_table_of(declaration), marks.rows)


def _again(declaration: Pipeline, refresh: KeyRefresh, plan: Plan) -> tuple[str, ...]:
    """When the rows of a key of an aggregate are read."""
    if declaration.aggregation is None:
        return ()
    ((table, at),) = plan.wanted.inputs.items()
    if not declaration.from_parts:
        return ()
    rows = declaration.in_windows(table, read_input(refresh.session, refresh.warehouse.path(table), at.version))
    return declaration.aggregation.reads_again(declaration.aggregation.floating(rows))


def _reads(
    declaration: Pipeline,
    made: Made | None,
    until: dict[str, int],
    restricted: set[str],
    pruned: Mapping[str, Some] = MappingProxyType({}),
    *,
    changes_of: Collection[str] = (),
) -> tuple[Read, ...]:
    since = {} if made is None else {table: at.version for table, at in made.stamp.inputs.items()}
    return tuple(
        Read(
            table=table,
            whole=table not in restricted and table not in changes_of,
            since=since.get(table),
            until=until[table],
            files=(len(pruned[table].files), pruned[table].among) if table in pruned else None,
            only_changes=table in changes_of,
        )
        for table in declaration.inputs
    )


def _last(made: Made | None) -> Last | None:
    if made is None:
        return None
    refresh, commit = made.stamp.refresh, made.commit
    took_ms = None if refresh is None or commit.timestamp_ms is None else commit.timestamp_ms - refresh.began_ms
    return Last(
        version=commit.version,
        road="full" if refresh is None else refresh.road,
        reason=None if refresh is None else refresh.reason,
        keys=None if refresh is None else refresh.keys,
        changed=None if refresh is None else refresh.changed,
        costs=None if refresh is None else refresh.costs,
        rows=commit.metric("numOutputRows"),
        removed=made.stamp.removed,
        bytes=commit.metric("numOutputBytes"),
        seconds=None if took_ms is None else took_ms / 1000,
        again=None if refresh is None else refresh.again,
    )


def as_lines(explanation: Explanation) -> list[str]:
    """
    The explanation in words.
    """
    road = {
        "keys": f"by keys: {explanation.keys or 0:,} keys changed by {explanation.changed or 0:,} rows",
        "parts": f"from the changed rows alone, about {explanation.changed or 0:,}",
        "rows": f"the changed rows alone, about {explanation.changed or 0:,}",
        "stream": "a streaming query over what has come",
        "full": "the full query",
        "none": "nothing has changed",
    }[explanation.road]
    if explanation.costs is not None:
        cheaper, full = explanation.costs
        way = "of it" if explanation.road in {"parts", "rows"} else "by keys" if explanation.has_key else "by rows"
        road += f" (cost {way} {cheaper:,}, of the full query {full:,})"
    lines = [f"{explanation.table}: {road}"]
    if explanation.reason is not None:
        lines.append(f"  why not better: {explanation.reason}")
    for read in explanation.reads if explanation.road != "none" else ():
        since = "" if read.since is None else f", changes since version {read.since}"
        among = "" if read.files is None else f" in {read.files[0]:,} of {read.files[1]:,} files"
        what = "the whole of it" if read.whole else f"the rows of these keys{among}{since}"
        what = f"the rows that came and went{since}" if read.only_changes else what
        lines.append(f"  reads {read.table} version {read.until}: {what}")
    lines.extend(f"  reads again {each}" for each in explanation.again)
    lines.extend(f"  a change of {table} runs the full query: {why}" for table, why in explanation.looked_up.items())
    for table, partitions in explanation.watermarks.items():
        if partitions:
            first, behind = max(partitions.values()), min(partitions, key=lambda each: partitions[each])
            least = partitions[behind]
            slow = "" if least == first else f"; partition {behind} is behind, at {least}"
            lines.append(f"  watermark of {table}: {first}{slow}")
    if explanation.final is not None:
        lines.append(f"  windows that end by {explanation.final} are final")
    if explanation.late is not None and explanation.late[1]:
        lines.append(f"  {explanation.late[1]:,} rows came too late for a window: {explanation.late[0]}")
    last = explanation.last
    if last is None:
        lines.append("  it has not been written yet")
        return lines
    how = "the full query"
    if last.keys is not None:
        how = f"{last.keys:,} keys, {last.changed:,} changed rows"
    elif last.road == "rows":
        how = f"{last.changed:,} changed rows"
    elif last.road == "stream":
        how = "a streaming query"
    how += f", {last.again:,} keys read again" if last.again else ""
    why = "" if last.reason is None else f" ({last.reason})"
    took = "" if last.seconds is None else f", {last.seconds:.1f} s"
    lines.append(
        f"  last refresh, version {last.version}: {how}{why}; {last.rows:,} rows written, {last.removed:,} removed, "
        f"{last.bytes:,} bytes{took}"
    )
    return lines


def as_json(explanation: Explanation) -> dict[str, Any]:
    """
    The explanation for programs.
    """
    return asdict(explanation)
