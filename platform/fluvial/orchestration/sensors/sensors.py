"""
A sensor that starts a run when the log has something new for a table.

Each tick asks the cluster once about all topics, and the tables' own logs where they stand: it reads no record, so that
it is done in a moment however much there is, and the tables, not the sensor, know what was read. A cluster that does
not answer is a reason to skip, and nothing is forgotten meanwhile.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import dagster as dg
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES

from fluvial.config import Settings, load_settings
from fluvial.errors import FluvialError
from fluvial.orchestration.assets.graph import asset_key, topic_of
from fluvial.orchestration.assets.policies import Policy
from fluvial.orchestration.assets.sources import topic_observation
from fluvial.orchestration.assets.windows import newest_window
from fluvial.orchestration.checks.lag import lag_of, log_ends, table_ends
from fluvial.orchestration.run.instance import is_dead
from fluvial.orchestration.sensors.sensor_state import Cursor, Standing, decide
from fluvial.spark.kafka import TopicError
from fluvial.tables import Declaration, DeclarationError, Pipeline, Publication

SENSOR_TAG = "fluvial/sensor"
SECONDS_BETWEEN = 5


def offsets_sensor(
    declarations: Mapping[str, Declaration],
    *,
    name: str = "new_offsets",
    lag_min: int = 1,
    seconds_between: int = SECONDS_BETWEEN,
    policies: Mapping[str, Policy] | None = None,
    settings: Callable[[], Settings] = load_settings,
    running: bool = True,
) -> dg.SensorDefinition:
    """
    Return the sensor that runs those tables of `declarations` which lag by `lag_min` records, and what reads them.

    One run at a time: what comes meanwhile is the next one's. `policies` are those of `assets_for`: a table with
    partitions is run for the newest window that has ended, and what reads it in the same run: it must have the same
    ones or none, or DeclarationError is raised. `running` False leaves it to be switched on in the page.
    """
    followed = {table: each for table, each in declarations.items() if topic_of(each) is not None}
    keys = [asset_key(table) for table in declarations]
    partitions = {
        table: policy.partitions for table, policy in (policies or {}).items() if policy.partitions is not None
    }
    _check_alike(declarations, partitions)

    @dg.sensor(
        name=name,
        asset_selection=dg.AssetSelection.assets(*keys),
        minimum_interval_seconds=seconds_between,
        default_status=dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED,
        description="Starts a run when the log holds something new for a table.",
    )
    def new_offsets(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        under_way = _under_way(context.instance, name)
        if under_way is not None:
            return _skip(context, f"run {under_way} is under way; what is new is the next one's")
        found = settings()
        try:
            standings, remarks = _standings(followed, found, context.instance)
            decision = decide(Cursor.of(context.cursor), standings, now=time.time(), lag_min=lag_min)
            runs = _runs(decision.due, declarations, partitions, found)
        except TopicError as error:
            return _skip(context, f"{error}; asked again in {seconds_between} s")
        if not runs:
            reasons = "; ".join([*decision.reasons, *remarks]) or "nothing new in the log"
            # Nothing was asked for, so nothing of it is remembered.
            return _skip(context, reasons)
        run_now = {table for _, tables in runs for table in tables}
        cursor = decision.cursor.without(set(decision.due) - run_now)
        return dg.SensorResult(
            run_requests=[
                dg.RunRequest(
                    # The same tick evaluated twice, as after a crash of the daemon, asks for the same run.
                    run_key=f"{name}-{cursor.runs}{f'-{window}' if window else ''}",
                    asset_selection=[asset_key(table) for table in tables],
                    partition_key=window,
                    tags={SENSOR_TAG: name},
                )
                for window, tables in runs
            ],
            asset_events=_observations(standings, followed),
            cursor=cursor.as_text(),
        )

    return new_offsets


def _check_alike(
    declarations: Mapping[str, Declaration], partitions: Mapping[str, dg.TimeWindowPartitionsDefinition]
) -> None:
    """One run is of one partition, and it is of a table and of what reads it."""
    for table, each in declarations.items():
        sources = each.inputs if isinstance(each, Pipeline | Publication) else ()
        for source in sources:
            if table in partitions and source in partitions and partitions[table] != partitions[source]:
                raise DeclarationError(
                    f"{table} and {source}, which it reads, have different partitions, and the sensor starts one run "
                    "of both: give them the same ones, or leave those of one out"
                )


def _observations(standings: Mapping[str, Standing], followed: Mapping[str, Declaration]) -> list[dg.AssetObservation]:
    """What was seen of each topic, with the lag of its tables."""
    topics: dict[str, dict[str, int]] = {}
    ends = {}
    for table, standing in standings.items():
        topic = topic_of(followed[table]) or ""
        ends[topic] = standing.ends
        topics.setdefault(topic, {})[table] = lag_of(standing.ends, standing.position)
    return [topic_observation(topic, ends[topic], lag) for topic, lag in topics.items()]


def _skip(context: dg.SensorEvaluationContext, reason: str) -> dg.SensorResult:
    return dg.SensorResult(skip_reason=reason, cursor=context.cursor)


def _under_way(instance: dg.DagsterInstance, name: str) -> str | None:
    """The id of a run that this sensor has started and that goes on; those whose process died are closed."""
    asked = dg.RunsFilter(tags={SENSOR_TAG: name}, statuses=NOT_FINISHED_STATUSES)
    for run in instance.get_runs(asked):
        if instance.is_ephemeral or not is_dead(Path(instance.root_directory), run.run_id):
            return run.run_id
        instance.report_run_failed(run, "The process of this run died; its uncommitted work is discarded.")
    return None


def _standings(
    followed: Mapping[str, Declaration], settings: Settings, instance: dg.DagsterInstance
) -> tuple[dict[str, Standing], list[str]]:
    """Where the tables stand, and remarks on those that nothing can be said of. Raises TopicError."""
    topics = {table: topic_of(each) or "" for table, each in followed.items()}
    log = log_ends(settings, set(topics.values()))
    remarks = [f"there is no topic {topic}" for topic in log.absent]
    standings = {}
    for table, topic in topics.items():
        if topic not in log.ends:
            continue
        try:
            position = table_ends(settings, table, instance)
        except FluvialError as error:
            remarks.append(str(error))
            continue
        standings[table] = Standing(position=position, ends=log.ends[topic])
    return standings, remarks


def _runs(
    due: Sequence[str],
    declarations: Mapping[str, Declaration],
    partitions: Mapping[str, dg.TimeWindowPartitionsDefinition],
    settings: Settings,
) -> list[tuple[str | None, list[str]]]:
    """The runs to ask for: for each window, or None, the tables; what reads tables goes with them."""
    runs: dict[str | None, list[str]] = {}
    for table in due:
        window = None
        if table in partitions:
            topic = topic_of(declarations[table]) or ""
            window = newest_window(settings, topic, partitions[table], table_ends(settings, table))
            if window is None:
                # The newest records are of a window that has not ended.
                continue
        runs.setdefault(window, []).append(table)
    taken: set[str] = set()
    for window, tables in sorted(runs.items(), key=lambda run: run[0] is None):
        for name, each in declarations.items():
            reads = isinstance(each, Pipeline | Publication) and any(source in tables for source in each.inputs)
            if reads and name not in taken:
                runs[window].append(name)
                taken.add(name)
    return list(runs.items())
