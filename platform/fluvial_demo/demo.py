"""
The main job on real data: from nothing to answers, each step a function of its own.

    platform → contracts → events → tables → answers

Every step looks at what is there already, so a job that was killed anywhere is completed by running it again, and one
that was completed changes nothing.
"""

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from fluvial.config import Settings, data_dir_words, load_settings
from fluvial.local.credentials import passwords_for
from fluvial.local.start import Layout, start
from fluvial.registry.contracts import Registered, load_contracts, register_all
from fluvial.spark.java import require_java
from fluvial_demo import source
from fluvial_demo.feeds import all_feeds
from fluvial_demo.node_loss import NodeLoss
from fluvial_demo.project import CONTRACTS, SOURCE, ensure_project
from fluvial_demo.publish import Published, Publisher, publish_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fluvial.orchestration.run.progress import RunEvent, RunSummary

EVENTS_TOPIC = "flight_events"
CHART = Path("demo", "departure-delay.png")
"""Where the picture is, in the data directory."""


@dataclass(slots=True)
class Stopwatch:
    """How long each step took, in seconds, in their order."""

    steps: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure one step."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.steps[name] = time.monotonic() - started

    def __str__(self) -> str:
        total = sum(self.steps.values())
        parts = " · ".join(f"{name} {seconds:.1f}" for name, seconds in self.steps.items())
        return f"{total:.1f} s in all: {parts}"


def main(
    settings: Settings,
    answers: Console,
    progress: Console,
    *,
    layout: Layout | None,
    until: datetime | None = None,
    kill_a_node: bool = False,
) -> None:
    """
    Run the whole job: what it finds out goes to `answers`, how it gets on to `progress`.

    The tables are those of the project in the working directory, which is written if there is none. The local platform
    of `settings.data_dir` is started with `layout`; None leaves it alone and works on the cluster
    that `settings` name. `until` takes only what happened before it. With `kill_a_node` a leader of the local platform
    dies while events are published and returns while tables are built. Raises FluvialError for what a user can repair.
    """
    require_java()
    source.data_folder()
    if written := ensure_project(Path.cwd()):
        progress.print(f"The project of the demo is in this folder now, yours to change: {', '.join(written)}")
    clock = Stopwatch()
    with clock.step("platform"):
        settings = start_platform(settings, layout, progress) if layout is not None else settings
        loss = NodeLoss(settings.data_dir, EVENTS_TOPIC, progress) if kill_a_node else None
    with clock.step("contracts"):
        register_contracts(settings, progress)
    try:
        with clock.step("events"):
            published = publish_events(settings, until, progress, loss)
        with clock.step("Spark"):
            spark = start_spark(settings, progress)
        try:
            with clock.step("tables"):
                summary = materialize_tables(settings, progress, loss)
            with clock.step("answers"):
                show_answers(spark, settings, answers)
                chart = draw_chart(spark, settings)
        finally:
            # A driver that was killed cannot be stopped any more; what went wrong is told already.
            with suppress(Exception):
                spark.stop()
    finally:
        if loss is not None:
            loss.settle()
    say_what_changed(published, summary, answers)
    answers.print(f"The chart: {chart}")
    answers.print(f"{clock}\n", soft_wrap=True)
    say_how_to_go_on(settings, answers)


def start_platform(settings: Settings, layout: Layout, progress: Console) -> Settings:
    """Start what is down of the local platform; return settings that point to it."""
    _headline(progress, "1/5", "the platform: a broker and a schema registry")
    running = start(settings.data_dir, layout)
    platform = running.platform
    how = "started" if running.started else "was up already"
    progress.print(f"  {platform.bootstrap_servers}, {platform.registry_url} {how}; data in {settings.data_dir}")
    settings = replace(settings, bootstrap_servers=platform.bootstrap_servers, registry_url=platform.registry_url)
    if not layout.secured or settings.kafka_properties:
        return settings
    # Its users have been made just now.
    made = load_settings(data_dir=str(settings.data_dir))
    return replace(settings, kafka_properties=made.kafka_properties, registry_properties=made.registry_properties)


def register_contracts(settings: Settings, progress: Console) -> list[Registered]:
    """Register the contracts of every producer."""
    _headline(progress, "2/5", "the contracts: what each producer promises")
    passwords = passwords_for(settings.data_dir, settings.registry_url)
    with settings.registry.client() as client:
        registered = register_all(client, load_contracts(CONTRACTS), passwords=passwords)
    for each in registered:
        how = "registered" if each.is_new else "was there already"
        progress.print(f"  {each.contract.subject:<22} schema {each.id} of {each.contract.producer} {how}")
    return registered


def publish_events(
    settings: Settings, until: datetime | None, progress: Console, loss: NodeLoss | None = None
) -> list[Published]:
    """Publish what the log does not hold yet; `loss` hears how far its topic is."""
    _headline(progress, "3/5", "the events: flights, weather and reference data of 2013")
    with (
        settings.registry.client() as registry,
        Publisher(settings.cluster, registry) as publisher,
    ):
        published = publish_all(publisher, all_feeds(until), progress, {} if loss is None else {loss.topic: loss.at})
    for each in published:
        if each.repaired:
            show_repaired(each, progress)
    sent, seconds = sum(each.sent for each in published), sum(each.seconds for each in published)
    held = sum(each.held for each in published)
    progress.print(f"  {sent:,} records published in {seconds:.1f} s, {held:,} were in the log already")
    return published


def show_repaired(published: Published, progress: Console) -> None:
    """Say which records of a topic arrived damaged, why the broker put them aside, and that they are back."""
    progress.print(f"  {len(published.repaired)} records of {published.topic} arrived damaged and went to quarantine:")
    for record in published.repaired:
        progress.print(f"    {record.position}  {record.reason}", soft_wrap=True)
    progress.print("  each was repaired from the source and replayed, with its old time and place in its header")


def start_spark(settings: Settings, progress: Console) -> "SparkSession":
    """Start the session that builds the tables and answers the questions."""
    _headline(progress, "4/5", "the tables: history, compacted, state and a mart, as Dagster assets on Spark")
    from fluvial.spark.session import build_session
    from fluvial.tables.declare.project import load_project
    from fluvial.tables.drive.short_run import is_short

    with progress.status("starting Spark"):
        return build_session(
            settings,
            "fluvial demo",
            say=lambda line: progress.print(f"  {line}"),
            is_short=is_short([*load_project(settings.project).values()], settings),
        )


def materialize_tables(settings: Settings, progress: Console, loss: NodeLoss | None = None) -> "RunSummary":
    """Materialise every asset; one line for each as it ends. What `loss` has killed comes back meanwhile."""
    from fluvial.orchestration.run.progress import AssetFinished, AssetStarted, CheckFinished, Status
    from fluvial.orchestration.run.run import materialize_all

    if loss is not None:
        loss.bring_back()
    with progress.status("loading the assets") as status:

        def tell(event: "RunEvent") -> None:
            match event:
                case AssetStarted(table=table):
                    status.update(table)
                case AssetFinished(table=table, status=Status.UNCHANGED):
                    progress.print(f"  {table:<36} nothing new")
                case AssetFinished(table=table, status=Status.MATERIALIZED, metadata=numbers):
                    quarantined = numbers["quarantined"]
                    progress.print(
                        f"  {table:<36} {numbers['rows']:>9,} rows   {numbers['seconds']:>5.1f} s"
                        + (f"   {quarantined:,} records went to quarantine" if quarantined else "")
                    )
                case AssetFinished(table=table, status=how, error=error):
                    progress.print(f"  {table:<36} {how}{f': {error}' if error else ''}")
                case CheckFinished(table=table, name=name, passed=False, error=error):
                    progress.print(f"  {table:<36} check {name} failed{f': {error}' if error else ''}")

        summary = materialize_all(settings, on_event=tell)
    passed = sum(check.passed for check in summary.checks)
    progress.print(f"  {passed} of {len(summary.checks)} checks passed")
    return summary


def show_answers(spark: "SparkSession", settings: Settings, answers: Console) -> None:
    """Ask each question and print its answer as a table."""
    from fluvial.spark.session import register_tables, run_sql
    from fluvial_demo.questions import QUESTIONS

    register_tables(spark, settings)
    answers.print("5/5 the answers, in Spark SQL\n", style="bold")
    for question in QUESTIONS:
        frame = run_sql(spark, settings, question.query)
        answers.print(answer_table(question.title, frame.columns, [tuple(row) for row in frame.collect()]))
        answers.print()


def answer_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """Draw an answer: numbers to the right, thousands separated, means to a tenth."""
    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim", box=None)
    for at, column in enumerate(columns):
        numeric = any(isinstance(row[at], int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(_shown(column, value) for column, value in zip(columns, row, strict=True)))
    return table


def _shown(column: str, value: Any) -> str:
    match value:
        case None:
            return "-"
        case int() if column != "built":
            return f"{value:,}"
        case float():
            return f"{value:,.1f}"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M}"
        case _:
            return str(value)


def draw_chart(spark: "SparkSession", settings: Settings) -> Path:
    """Draw the mart; return the picture's path."""
    from fluvial.spark.session import run_sql
    from fluvial_demo.chart import draw
    from fluvial_demo.questions import CHART_QUERY

    path = settings.data_dir / CHART
    draw(run_sql(spark, settings, CHART_QUERY).collect(), path)
    return path


def say_what_changed(published: Sequence[Published], summary: "RunSummary", answers: Console) -> None:
    """Say what this run has added, and when that is nothing."""
    from fluvial.orchestration.run.progress import Status

    sent = sum(each.sent for each in published)
    changed = [asset.table for asset in summary.assets if asset.status is Status.MATERIALIZED]
    if not sent and not changed:
        answers.print("Nothing was published and no table has changed: all of it was there already.")
    else:
        answers.print(f"{sent:,} records published, {len(changed)} of {len(summary.assets)} tables changed.")


def say_how_to_go_on(settings: Settings, answers: Console) -> None:
    """Print the commands to try next, as they are to be typed here."""
    fluvial = command_name()
    where = data_dir_words(settings.data_dir)
    query = "select * from state.aircraft order by miles desc limit 5"
    ui = "make ui" if not where and Path.cwd() == SOURCE else f"{fluvial} ui{where}"
    answers.print("Go on with", style="bold")
    for command, purpose in (
        (f'{fluvial} sql{where} "{query}"', "ask your own"),
        (ui, "the assets, their numbers and checks on the Dagster page"),
        (f"{fluvial} down{where}", "stop the platform; the data stays"),
    ):
        # Not wrapped: a command is copied as one line.
        answers.print(f"  {command}", soft_wrap=True)
        answers.print(f"      {purpose}", style="dim")


def command_name() -> str:
    """Return how `fluvial` is called from the working directory: its bare name where PATH finds this one."""
    program = Path(sys.executable).parent / "fluvial"
    on_path = shutil.which("fluvial")
    if on_path is not None and Path(on_path).resolve() == program.resolve():
        return "fluvial"
    with suppress(ValueError):
        return str(program.relative_to(Path.cwd()))
    return str(program)


def _headline(progress: Console, number: str, what: str) -> None:
    progress.print(f"{number} {what}", style="bold")
