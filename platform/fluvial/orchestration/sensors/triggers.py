"""What starts runs beside the sensor on new offsets: conditions on what is upstream, and the clock."""

from collections.abc import Sequence
from typing import Any, cast

import dagster as dg

from fluvial.orchestration.assets.graph import asset_key


def when_inputs_change() -> dg.AutomationCondition[dg.AssetKey]:
    """
    Return the condition for an asset to run once something that it reads has been updated since its own last run.

    Unlike Dagster's `eager` it does not wait for partitions of an input that nobody asked for, and inputs that are
    being written are waited for.
    """
    condition: Any = (
        dg.AutomationCondition.any_deps_updated()
        .since(dg.AutomationCondition.newly_requested() | dg.AutomationCondition.newly_updated())
        .with_label("an input has changed")
        & ~dg.AutomationCondition.any_deps_in_progress()
        & ~dg.AutomationCondition.in_progress()
    )
    return cast("dg.AutomationCondition[dg.AssetKey]", condition.with_label("when_inputs_change"))


def at_times(cron: str, *, timezone: str = "UTC") -> dg.AutomationCondition[dg.AssetKey]:
    """Return the condition for an asset to run at the times of a cron line, whether or not its inputs have changed."""
    condition: Any = (
        dg.AutomationCondition.cron_tick_passed(cron, timezone).since(dg.AutomationCondition.newly_requested())
        & ~dg.AutomationCondition.in_progress()
    )
    return cast("dg.AutomationCondition[dg.AssetKey]", condition.with_label(f"at_times({cron!r})"))


def schedule(
    tables: Sequence[str], cron: str, *, name: str, timezone: str = "UTC", running: bool = True
) -> dg.ScheduleDefinition:
    """Return the schedule that brings tables up to date, in one run, at the times of a cron line."""
    return dg.ScheduleDefinition(
        name=name,
        target=dg.AssetSelection.assets(*map(asset_key, tables)),
        cron_schedule=cron,
        execution_timezone=timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING if running else dg.DefaultScheduleStatus.STOPPED,
    )
