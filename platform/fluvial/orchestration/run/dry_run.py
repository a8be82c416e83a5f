"""What a run would read and write, told without Spark and without a run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fluvial.config import Settings
from fluvial.delta.errors import TableError
from fluvial.delta.log import TableLog
from fluvial.delta.stamp import read_position
from fluvial.errors import FluvialError
from fluvial.spark.kafka import topic_bounds
from fluvial.spark.warehouse import Warehouse
from fluvial.tables import Declaration, Pipeline, Publication
from fluvial.tables.drive.preflight import look_ahead
from fluvial.tables.plan.growth import in_order
from fluvial.tables.plan.planning import has_new_records, plan_span
from fluvial.tables.publishing.progress import read_progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """
    One table's part of a run.

    `reads` names its topic or its input tables, `ranges` the offsets that would be read of each partition, `version`
    the table's newest version, None where the run would make the table. `problem` is why the run would fail.
    """

    table: str
    reads: tuple[str, ...]
    writes: str
    version: int | None
    ranges: Mapping[int, tuple[int, int]]
    would_write: bool
    problem: str | None = None

    @property
    def records_max(self) -> int:
        """The number of offsets that would be read."""
        return sum(end - start for start, end in self.ranges.values())


def plan_run(
    declarations: Mapping[str, Declaration], settings: Settings, selection: Sequence[str] | None = None
) -> list[Planned]:
    """
    Return what a run of the tables would do now, inputs before what reads them.

    A pipeline would be written when a table that it reads would, or is newer than what it was made from; that its code
    has changed is not looked at. Raises TopicError when the cluster does not answer, and FluvialError for a warehouse
    that is not on this machine, whose tables only Spark can look at.
    """
    warehouse = Warehouse.at(settings.warehouse)
    if warehouse.local is None:
        raise FluvialError(f"a dry run looks at tables on this machine, and {warehouse.root} is elsewhere")
    chosen = {table: each for table, each in declarations.items() if selection is None or table in selection}
    problems = look_ahead(list(chosen.values()), declarations, settings).problems
    planned: dict[str, Planned] = {}
    for table, declaration in chosen.items():
        path = f"{warehouse.local}/{table.replace('.', '/')}"
        if isinstance(declaration, Pipeline):
            planned[table] = _planned(declaration, path, partial(_pipeline, declaration, path, planned, warehouse))
        elif isinstance(declaration, Publication):
            planned[table] = _planned(
                declaration, path, partial(_publication, declaration, settings, planned, warehouse)
            )
        else:
            planned[table] = _of_topic(declaration, path, settings)
        if table in problems:
            planned[table] = replace(planned[table], would_write=False, problem=str(problems[table]))
    return list(planned.values())


def _planned(declaration: Pipeline | Publication, path: str, plan: Callable[[], Planned]) -> Planned:
    """Plan a table; one whose log is broken has that for its problem."""
    try:
        return plan()
    except TableError as error:
        return Planned(
            table=declaration.table,
            reads=declaration.inputs,
            writes=path,
            version=None,
            ranges={},
            would_write=False,
            problem=str(error),
        )


def _of_topic(declaration: Declaration, path: str, settings: Settings) -> Planned:
    assert not isinstance(declaration, Pipeline | Publication), "it has no topic that it reads"
    problem, version, ranges, changes = None, None, {}, False
    try:
        position = read_position(TableLog(None, path), declaration.table)
        version = position.version
        bounds = topic_bounds(settings.cluster, declaration.topic)
        span = plan_span(declaration.table, position, bounds)
        if declaration.needs_order:
            age_ms = settings.metadata_max_age_ms
            span, _ = in_order(declaration.table, span, bounds, position, cluster=settings.cluster, age_ms=age_ms)
        ranges, changes = dict(span.ranges), version is None or has_new_records(span)
    except FluvialError as error:
        problem = str(error)
    return Planned(
        table=declaration.table,
        reads=(f"topic {declaration.topic}",),
        writes=path,
        version=version,
        ranges=ranges,
        would_write=changes,
        problem=problem,
    )


def _pipeline(declaration: Pipeline, path: str, planned: Mapping[str, Planned], warehouse: Warehouse) -> Planned:
    log = TableLog(None, path)
    log.check()
    version = log.newest_version()
    made_from: Mapping[str, Mapping[str, object]] = {}
    for commit in log.newest_first():
        made_from = ((commit.user_metadata or {}).get("fluvial") or {}).get("inputs") or {}
        if made_from:
            break
    problem, changes = None, version is None
    for table in declaration.inputs:
        newest = TableLog(None, f"{warehouse.local}/{table.replace('.', '/')}").newest_version()
        before = planned.get(table)
        comes = before is not None and before.would_write
        if newest is None and not comes:
            problem = f"it reads {table}, which does not exist: run it first"
        changes |= (comes and table not in declaration.pinned) or made_from.get(table, {}).get(
            "version"
        ) != declaration.pinned.get(table, newest)
    return Planned(
        table=declaration.table,
        reads=declaration.inputs,
        writes=path,
        version=version,
        ranges={},
        would_write=changes and problem is None,
        problem=problem,
    )


def _publication(
    declaration: Publication, settings: Settings, planned: Mapping[str, Planned], warehouse: Warehouse
) -> Planned:
    newest = TableLog(None, f"{warehouse.local}/{declaration.source.replace('.', '/')}").newest_version()
    before = planned.get(declaration.source)
    comes = before is not None and before.would_write
    problem = None if newest is not None or comes else f"it publishes {declaration.source}, which is not there"
    version = None
    try:
        progress = read_progress(settings, declaration.table)
        version = None if progress is None or progress.done is None else progress.done.number
    except FluvialError as error:
        problem = str(error)
    return Planned(
        table=declaration.table,
        reads=declaration.inputs,
        writes=f"topic {declaration.topic}",
        version=version,
        ranges={},
        would_write=problem is None and (comes or version != newest),
        problem=problem,
    )
