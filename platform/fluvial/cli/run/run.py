"""`fluvial run`: materialize tables of the project."""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluvial.cli import terminal
from fluvial.cli.options import AnswerFormat, Form, with_tables
from fluvial.cli.run.handed_over import hand_over
from fluvial.cli.run.interrupts import ended_by_interrupt
from fluvial.config import Settings
from fluvial.errors import FluvialError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fluvial.orchestration.run.progress import AssetFinished, RunEvent
    from fluvial.quality.running import Checked
    from fluvial.quality.suite import Suite
    from fluvial.spark.avro import Contract
    from fluvial.tables import Declaration
    from fluvial.tables.plan.result import RunResult
    from fluvial.tables.plan.skips import SkipsWanted

    Contracts = Mapping[str, Contract]

_log = logging.getLogger(__name__)

ALL = "all"
# So many objects are made before garbage is looked for, instead of some hundreds.
_OBJECTS_BETWEEN = 100_000


class UnknownPipelineError(FluvialError):
    """The project declares no table of this name."""

    def __init__(self, name: str, declared: list[str], project: str) -> None:
        # `aircraft` means state.aircraft just as well as `state.aircrafts` does.
        near = [table for table in declared if table.partition(".")[2] == name] or get_close_matches(
            name, declared, n=3
        )
        repair = f"did you mean {' or '.join(near)}?" if near else f"it declares {', '.join(declared) or 'none'}"
        super().__init__(f"no pipeline {name!r} in project {project!r}; {repair}")


def require_declared(names: Iterable[str], declared: list[str], project: str) -> None:
    """Raise UnknownPipelineError for the first of `names` that the project does not declare."""
    for name in names:
        if name not in declared:
            raise UnknownPipelineError(name, declared, project)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Example:  fluvial run state.aircraft")(run)


@with_tables
def run(
    *,
    settings: Settings,
    pipelines: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PIPELINE…]", help="Tables such as state.aircraft; none or `all` for all.", show_default=False
        ),
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option(
            "--select",
            "-s",
            metavar="NAME|tag:KEY[=VALUE]",
            help="Tables by name or tag; +NAME with all upstream, NAME+ with all downstream of it; repeatable.",
            show_default=False,
        ),
    ] = None,
    continuous: Annotated[
        bool,
        typer.Option("--continuous", help="Run until Ctrl-C or SIGTERM: a micro-batch whenever there are new records."),
    ] = False,
    rebuild: Annotated[
        bool,
        typer.Option(
            "--rebuild",
            help="Rebuild the named tables from the log; readers see the old rows until the rebuild is complete.",
        ),
    ] = False,
    from_what_is_left: Annotated[
        bool,
        typer.Option("--from-what-is-left", help="Rebuild even if the log no longer has its first records."),
    ] = False,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            "--skip",
            metavar="TOPIC:PARTITION=OFFSET[,…]",
            help="Leave these records out of the named tables for good; may be given again.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be read and written, without doing it.")
    ] = False,
    answer_format: AnswerFormat = Form.TABLE,
) -> None:
    """
    Materialize tables of the project from the log, inputs before the tables that read them.

    Each table is a Dagster asset; `fluvial ui` shows the run. A table without new records does not change. With
    --continuous this process runs micro-batches without Dagster; each batch is one commit of its table, and the
    suites of the project's checks are evaluated on the rows that came.
    """
    if rebuild and (continuous or dry_run or not pipelines):
        raise typer.BadParameter("--rebuild: name the tables to build again, and leave out --continuous and --dry-run")
    if from_what_is_left and not rebuild:
        raise typer.BadParameter("--from-what-is-left goes with --rebuild")
    if skip and (continuous or dry_run or not pipelines):
        raise typer.BadParameter("--skip: name the tables, and leave out --continuous and --dry-run")
    if answer_format is Form.JSON and (continuous or rebuild or skip):
        raise typer.BadParameter("--format json is of a run or a dry run: leave out --continuous, --rebuild and --skip")
    if select and pipelines:
        raise typer.BadParameter("--select: leave out the names before it, or give each with --select too")
    if not (continuous or dry_run) and (status := hand_over(settings)) is not None:
        raise typer.Exit(status)
    with nullcontext() if continuous or dry_run else ended_by_interrupt():
        selection = _select(settings, select) if select else _selection(settings, pipelines or [])
        skips = _skips(settings, selection, skip or [])
        if dry_run:
            _say_plan(settings, selection, answer_format)
            return
        contracts = _check_before(settings, selection, is_rebuild=rebuild)
        if continuous:
            _follow(settings, selection, contracts)
        elif rebuild:
            _rebuild(settings, selection, contracts, skips, from_what_is_left=from_what_is_left)
        elif skips:
            _run_skipping(settings, selection, contracts, skips)
        else:
            _materialize(settings, selection, contracts, answer_format)


def _materialize(settings: Settings, selection: list[str] | None, contracts: "Contracts", answer_format: Form) -> None:
    import gc

    from fluvial.spark.session import start_ahead
    from fluvial.tables.drive.short_run import is_short

    # Next to nothing of what is imported and planned from here on is garbage.
    gc.set_threshold(_OBJECTS_BETWEEN)
    # It starts while Dagster is imported, which takes as long.
    chosen = _chosen(settings, selection)
    start_ahead(settings, is_short=lambda: is_short(chosen, settings))
    from fluvial.orchestration.run.run import materialize_all

    finished: list[AssetFinished] = []
    with _Progress(finished) as progress:
        try:
            summary = materialize_all(settings, selection, progress.on_event, contracts=contracts)
        finally:
            if answer_format is Form.JSON:
                terminal.answer(json.dumps([_row(each) for each in finished], indent=2, default=str))
    terminal.say(f"{len(summary.assets)} tables in {summary.seconds:.1f} s")


def _selection(settings: Settings, names: list[str]) -> list[str] | None:
    from fluvial.tables.declare.project import load_project

    declared = list(load_project(settings.project))
    if not declared:
        raise FluvialError(
            f"project {settings.project!r} declares no table; declare one, or name another module with --project"
        )
    require_declared([name for name in names if name != ALL], declared, settings.project)
    return None if not names or ALL in names else list(dict.fromkeys(names))


def _chosen(settings: Settings, selection: list[str] | None) -> "list[Declaration]":
    from fluvial.tables.declare.project import load_project

    declared = load_project(settings.project)
    return [each for name, each in declared.items() if selection is None or name in selection]


def _select(settings: Settings, words: list[str]) -> list[str]:
    from fluvial.cli.run.selection import selected, tags_of_project
    from fluvial.tables import Pipeline, Publication
    from fluvial.tables.declare.project import load_project

    _selection(settings, [])
    declared = load_project(settings.project)
    return selected(
        words,
        {name: each.inputs if isinstance(each, Pipeline | Publication) else () for name, each in declared.items()},
        require=lambda names: require_declared(names, list(declared), settings.project),
        tags=lambda: tags_of_project(settings),
    )


def _say_plan(settings: Settings, selection: list[str] | None, answer_format: Form) -> None:
    from fluvial.orchestration.run.dry_run import plan_run
    from fluvial.tables.declare.project import load_project

    planned = plan_run(load_project(settings.project), settings, selection)
    rows = [
        (
            each.table,
            ", ".join(each.reads),
            f"{each.records_max:,}",
            "-" if each.version is None else each.version,
            each.problem or ("would be written" if each.would_write else "nothing new"),
        )
        for each in planned
    ]
    if answer_format is Form.JSON:
        terminal.answer(
            json.dumps(
                [
                    {
                        "table": each.table,
                        "reads": list(each.reads),
                        "records": each.records_max,
                        "version": each.version,
                        "would_write": each.would_write,
                        "problem": each.problem,
                    }
                    for each in planned
                ],
                indent=2,
            )
        )
    else:
        terminal.table(("table", "reads", "records", "version", "outcome"), rows)
    problems = [_named(each.table, each.problem) for each in planned if each.problem]
    if problems:
        raise TablesStoppedError("; ".join(problems))


def _named(table: str, problem: str) -> str:
    return problem if problem.startswith(table) else f"{table}: {problem}"


def _check_before(settings: Settings, selection: list[str] | None, *, is_rebuild: bool) -> "Contracts":
    """Report errors before Spark starts, which takes half a minute; one table's error does not stop the others."""
    from fluvial.spark.connect import is_remote
    from fluvial.spark.java import require_java
    from fluvial.spark.warehouse import Warehouse
    from fluvial.tables.declare.project import load_project
    from fluvial.tables.drive.preflight import look_ahead

    if not is_remote(settings.spark_master):
        require_java()
    Warehouse.at(settings.warehouse).require_writable()
    chosen = _chosen(settings, selection)
    found = look_ahead(chosen, load_project(settings.project), settings, is_rebuild=is_rebuild)
    if found.problems and len(found.problems) == len(chosen):
        raise TablesStoppedError("; ".join(_named(table, str(problem)) for table, problem in found.problems.items()))
    return found.contracts


def _skips(settings: Settings, selection: list[str] | None, texts: list[str]) -> "dict[str, SkipsWanted]":
    from fluvial.cli.run.skips import check_skips, parse_skips

    if not texts:
        return {}
    skips = parse_skips(texts)
    check_skips(skips, _chosen(settings, selection))
    return skips


def _run_skipping(
    settings: Settings, selection: list[str] | None, contracts: "Contracts", skips: "dict[str, SkipsWanted]"
) -> None:
    from fluvial.tables.drive.runner import materialize

    def run(declaration: "Declaration", spark: "SparkSession") -> "RunResult":
        skip = skips.get(getattr(declaration, "topic", ""))
        return materialize(declaration, settings, spark, contract=contracts.get(declaration.table), skip=skip)

    _run_each(settings, selection, run)


def _rebuild(
    settings: Settings,
    selection: list[str] | None,
    contracts: "Contracts",
    skips: "dict[str, SkipsWanted]",
    *,
    from_what_is_left: bool,
) -> None:
    from fluvial.tables.drive.rebuild import rebuild

    def run(declaration: "Declaration", spark: "SparkSession") -> "RunResult":
        return rebuild(
            declaration,
            settings,
            spark,
            contract=contracts.get(declaration.table),
            from_what_is_left=from_what_is_left,
            skip=skips.get(getattr(declaration, "topic", "")),
            progress=lambda batch: None if batch.skipped else terminal.say(f"beside it: {_batch_line(batch)}"),
            say=terminal.say,
        )

    _run_each(settings, selection, run)


def _run_each(
    settings: Settings, selection: list[str] | None, run: "Callable[[Declaration, SparkSession], RunResult]"
) -> None:
    """Run the tables one after the other, each by `run`."""
    from fluvial.catalog.registrar import Registrar
    from fluvial.spark.session import build_session
    from fluvial.tables.declare.project import load_project

    declared = load_project(settings.project)
    done: dict[str, RunResult] = {}
    registrar = Registrar.of(settings)
    with _reported(settings, done):
        spark = build_session(settings, say=terminal.say, borrow=True)
        try:
            for name in declared if selection is None else selection:
                done[name] = run(declared[name], spark)
                if registrar is not None:
                    registrar.after(declared[name], done[name], spark, terminal.say)
                terminal.say(_batch_line(done[name]))
        finally:
            spark.stop()


@contextmanager
def _reported(settings: Settings, results: "Mapping[str, RunResult]") -> Iterator[None]:
    """Show on Dagster's page, once this is over, the last result of each table; a page that cannot be is left out."""
    from importlib.util import find_spec

    try:
        yield
    finally:
        if results and find_spec("dagster") is not None:
            from fluvial.orchestration.run.reports import report_results

            try:
                report_results(settings, results.values())
            except Exception as error:  # of the project's own definitions: the tables are as they should be
                _log.debug("the results are not shown", exc_info=True)
                terminal.say(f"Dagster's page does not show this run: {error}")


class TablesStoppedError(FluvialError):
    """Tables could not be kept up to date."""


def _follow(settings: Settings, selection: list[str] | None, contracts: "Contracts") -> None:
    import signal
    from threading import Event

    from fluvial.quality import RunningChecks
    from fluvial.spark.session import build_session
    from fluvial.spark.warehouse import Warehouse
    from fluvial.tables.declare.project import load_project
    from fluvial.tables.drive.continuous import Watcher, follow

    declared = load_project(settings.project)
    chosen = [each for name, each in declared.items() if selection is None or name in selection]
    stop = Event()
    suites = [each for each in _suites(settings) if each.table in {table.table for table in chosen}]
    done: dict[str, RunResult] = {}

    def on_batch(result: "RunResult") -> None:
        done[result.table] = result
        terminal.say(_batch_line(result))

    former = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with _reported(settings, done):
            spark = build_session(settings, say=terminal.say)
            try:
                terminal.say(
                    f"following {', '.join(each.table for each in chosen)}; Ctrl-C stops after the current batch"
                )
                watcher = Watcher(
                    batch=on_batch,
                    waiting=terminal.say,
                    stopped=lambda table, error: terminal.say(f"{table} stopped: {error}"),
                )
                checks = RunningChecks(
                    suites, Warehouse.at(settings.warehouse), spark, on_checked=_say_checked, say=terminal.say
                )
                with settings.registry.client() as schemas, checks:
                    errors = follow(
                        chosen,
                        settings,
                        spark,
                        stop,
                        schemas=schemas,
                        contracts=contracts,
                        watcher=watcher,
                        checks=checks if suites else None,
                    )
            finally:
                spark.stop()
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    if errors:
        raise TablesStoppedError("; ".join(f"{table}: {error}" for table, error in errors.items()))


def _suites(settings: Settings) -> "list[Suite]":
    """The suites that the project's Dagster code makes checks of; none where Great Expectations is not installed."""
    from importlib.util import find_spec

    if find_spec("dagster") is None:
        return []
    from fluvial.orchestration.checks.checks import suites_of
    from fluvial.orchestration.run.code_location import definitions_of

    try:
        suites = suites_of(definitions_of(settings))
    except Exception as error:  # of the project's own definitions, which the tables do not need
        _log.debug("no suites are known", exc_info=True)
        terminal.say(f"suites are not evaluated, as the Dagster definitions cannot be loaded: {error}")
        return []
    if suites and find_spec("great_expectations") is None:
        terminal.say(f"{len(suites)} suites are not evaluated: Great Expectations is not installed")
        return []
    return suites


def _say_checked(checked: "Checked") -> None:
    if checked.sentence:
        kept = "" if checked.kept is None else f"; rows that fail are in {checked.kept}"
        terminal.say(f"{checked.suite.table}: suite {checked.suite.name}: {checked.sentence}{kept}")


def _batch_line(result: "RunResult") -> str:
    words = [f"{result.table:<28} version {result.version_after}", f"{result.rows:,} rows", f"{result.seconds:.2f} s"]
    if result.records_max:
        words.insert(1, f"{result.records_max:,} records")
    if result.quarantined:
        words.append(f"{result.quarantined} quarantined")
    if result.late_rows:
        words.append(f"{result.late_rows:,} late in all")
    return ", ".join(words)


class _Progress(AbstractContextManager["_Progress"]):
    """Shows what is being worked on, and a line for each table that is done, which it adds to `finished`."""

    def __init__(self, finished: "list[AssetFinished]") -> None:
        self._finished = finished
        console = terminal.stderr()
        self._console = console
        self._status = console.status("starting …")

    def __enter__(self) -> "_Progress":
        self._status.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._status.__exit__(*details)

    def on_event(self, event: "RunEvent") -> None:
        """Show one event of the run."""
        from fluvial.orchestration.run.progress import AssetFinished, AssetStarted, AssetWarned, CheckFinished

        match event:
            case AssetWarned():
                self._console.print(f"  {event.message}", soft_wrap=True)
            case AssetStarted():
                self._status.update(f"{event.table} …")
            case AssetFinished():
                self._finished.append(event)
                self._console.print(_finished(event))
            case CheckFinished() if not event.passed:
                self._console.print(f"  {event.table}: check {event.name} failed: {event.error or 'see the page'}")


def _row(event: "AssetFinished") -> dict[str, Any]:
    numbers = {name: event.metadata.get(name) for name in ("rows", "quarantined", "late_rows", "seconds")}
    return {"table": event.table, "status": str(event.status), **numbers, "error": event.error}


def _finished(event: "AssetFinished") -> str:
    numbers = event.metadata
    words = [f"{event.table:<28} {event.status}"]
    if numbers.get("rows"):
        words.append(f"{numbers['rows']} rows")
    if numbers.get("quarantined"):
        words.append(f"{numbers['quarantined']} quarantined")
    if numbers.get("late_rows"):
        words.append(f"{numbers['late_rows']} late in all")
    if numbers.get("seconds") is not None:
        words.append(f"{numbers['seconds']:.1f} s")
    return ", ".join(words)
