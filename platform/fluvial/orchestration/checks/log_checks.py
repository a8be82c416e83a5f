"""
Asset checks of tables against the log: that they are what it says, and that they keep up with it.

The checks of lag and freshness start no Spark; `lag_sensor` evaluates them every half minute without any run, and tells
whoever should know when one begins or ceases to fail.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import dagster as dg

from fluvial.config import Settings, load_settings
from fluvial.errors import FluvialError
from fluvial.orchestration.assets.graph import asset_key, topic_of
from fluvial.orchestration.checks.lag import lag_of, log_ends, table_ends
from fluvial.orchestration.run.spark_resource import SparkResource
from fluvial.spark.kafka import TopicError
from fluvial.spark.offset_times import cut_topic
from fluvial.tables import Declaration

TABLE_IS_LOG = "table_is_log"
KEEPS_UP = "keeps_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A table that begins to lag too far, or has caught up again (`passed`); `text` says it in a line."""

    table: str
    passed: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """
    The lag that a table may have.

    `records` in number, and `within` in time: every record that is older must be in the table. None is no limit.
    """

    records: int | None = None
    within: timedelta | None = None


def reconciliation_checks(
    declarations: Mapping[str, Declaration], *, blocking: bool = False
) -> list[dg.AssetChecksDefinition]:
    """
    Return a check for each table of a topic that reads the log again and proves the table to be what it says.

    A history is compared by count and checksum of each partition and range of offsets, a keyed table row by row. It
    reads all that the table has read: a check to run at night, or on its own from the page.
    """
    return [_reconciliation(each, blocking) for each in declarations.values() if topic_of(each) is not None]


def _reconciliation(declaration: Declaration, blocking: bool) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=asset_key(declaration.table),
        name=TABLE_IS_LOG,
        blocking=blocking,
        description=f"Reads {topic_of(declaration)} again and compares: same rows, same values, nothing twice.",
    )
    def check(context: dg.AssetCheckExecutionContext, spark: SparkResource) -> dg.AssetCheckResult:
        from fluvial.tables.inspect.verify import verify

        try:
            with spark.settings.registry.client() as schemas:
                verdict = verify(declaration, spark.settings, spark.session, schemas=schemas)
        except FluvialError as error:
            raise dg.Failure(description=str(error), allow_retries=False) from error
        ranges = [
            dg.TableRecord({"partition": partition, "start": start, "end": end, "records": end - start})
            for partition, (start, end) in sorted(verdict.ranges.items())
        ]
        metadata: dict[str, Any] = {
            "delta_version": verdict.version,
            "rows": verdict.rows,
            "differences": verdict.different,
            "compared": dg.MetadataValue.table(ranges) if ranges else "nothing: the topic is empty",
        }
        if verdict.differences:
            metadata["first_differences"] = dg.MetadataValue.table(
                [dg.TableRecord({"where": each.where, "what": each.what}) for each in verdict.differences]
            )
        shown = "; ".join(f"{each.where} {each.what}" for each in verdict.differences)
        return dg.AssetCheckResult(passed=verdict.is_exact, metadata=metadata, description=shown or None)

    return check


def lag_checks(
    declarations: Mapping[str, Declaration], *, allowed: Allowed | Mapping[str, Allowed]
) -> list[dg.AssetChecksDefinition]:
    """Return the check `keeps_up` for each table of a topic, or for those that `allowed` names."""
    return [_lag_check(declarations[table], limit) for table, limit in _limits(declarations, allowed)]


def _limits(
    declarations: Mapping[str, Declaration], allowed: Allowed | Mapping[str, Allowed]
) -> Iterator[tuple[str, Allowed]]:
    for table, declaration in declarations.items():
        limit = allowed if isinstance(allowed, Allowed) else allowed.get(table)
        if limit is not None and topic_of(declaration) is not None:
            yield table, limit


def _lag_check(declaration: Declaration, allowed: Allowed) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=asset_key(declaration.table),
        name=KEEPS_UP,
        description=f"Its lag is at most {allowed}.",
    )
    def check(context: dg.AssetCheckExecutionContext, spark: SparkResource) -> dg.AssetCheckResult:
        try:
            found = standing(declaration, spark.settings, allowed, context.instance)
        except FluvialError as error:
            raise dg.Failure(description=str(error)) from error
        return dg.AssetCheckResult(passed=found.passed, metadata=found.metadata, description=found.text)

    return check


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a table stands to what it is allowed."""

    passed: bool
    text: str
    metadata: Mapping[str, Any]


def standing(
    declaration: Declaration, settings: Settings, allowed: Allowed, instance: dg.DagsterInstance | None = None
) -> Standing:
    """Hold a table against the log; raises TopicError when that does not answer, TableError for a table without end."""
    topic = topic_of(declaration)
    assert topic is not None, "a pipeline has no lag"
    log = log_ends(settings, [topic])
    if topic not in log.ends:
        raise TopicError(f"there is no topic {topic} on {settings.bootstrap_servers}")
    position = table_ends(settings, declaration.table, instance)
    lag = lag_of(log.ends[topic], position)
    metadata: dict[str, Any] = {"lag": lag}
    problems = []
    if allowed.records is not None and lag > allowed.records:
        problems.append(f"{lag:,} records of lag, {allowed.records:,} are allowed")
    if allowed.within is not None and lag:
        moment = round((time.time() - allowed.within.total_seconds()) * 1000)
        (cut,) = cut_topic(settings.cluster, topic, [moment]).at
        old = lag_of(cut, position)
        metadata["older_than_allowed"] = old
        if old:
            problems.append(f"{old:,} records that are older than {allowed.within} are not in it")
    text = f"{declaration.table}: {'; '.join(problems)}" if problems else f"{declaration.table}: {lag:,} records of lag"
    return Standing(passed=not problems, text=text, metadata=metadata)


def lag_sensor(
    declarations: Mapping[str, Declaration],
    *,
    allowed: Allowed | Mapping[str, Allowed],
    notify: Callable[[Alert], None] | None = None,
    name: str = "lag",
    seconds_between: int = 30,
    settings: Callable[[], Settings] = load_settings,
    running: bool = True,
) -> dg.SensorDefinition:
    """
    Return the sensor that evaluates `keeps_up` without a run, and calls `notify` when a verdict changes.

    The page shows each change as an evaluation of the check, for which `lag_checks` must be among the definitions. A
    `notify` that fails fails the tick, and is called again at the next one with the same alerts.
    """
    limits = dict(_limits(declarations, allowed))

    @dg.sensor(
        name=name,
        minimum_interval_seconds=seconds_between,
        default_status=dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED,
        description="Reports when a table's lag exceeds its limit, and when it has caught up.",
    )
    def lag(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        failing = set(json.loads(context.cursor or "[]"))
        evaluations, texts = [], []
        for table, limit in limits.items():
            try:
                found = standing(declarations[table], settings(), limit, context.instance)
            except TopicError as error:
                return dg.SensorResult(skip_reason=str(error), cursor=context.cursor)
            except FluvialError as error:
                found = Standing(passed=False, text=str(error), metadata={})
            if found.passed == (table not in failing):
                continue
            if notify is not None:
                notify(Alert(table=table, passed=found.passed, text=found.text))
            failing ^= {table}
            texts.append(found.text)
            evaluations.append(
                dg.AssetCheckEvaluation(
                    asset_key=asset_key(table),
                    check_name=KEEPS_UP,
                    passed=found.passed,
                    metadata=found.metadata,
                    description=found.text,
                )
            )
        return dg.SensorResult(
            asset_events=evaluations,
            skip_reason=None if evaluations else f"no verdict has changed; {len(failing)} tables lag too far",
            cursor=json.dumps(sorted(failing)),
        )

    return lag


def webhook(url: str, *, timeout_s: float = 10.0) -> Callable[[Alert], None]:
    """Return a `notify` that posts `{"text": …}` to a chat's or a pager's address; a refusal raises httpx.HTTPError."""

    def post(alert: Alert) -> None:
        import httpx

        mark = "caught up" if alert.passed else "lags"
        httpx.post(url, json={"text": f"[{mark}] {alert.text}"}, timeout=timeout_s).raise_for_status()

    return post
