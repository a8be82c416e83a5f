"""Refreshes by what changed, also where the full query is weighed to be cheaper, as it is of small tables."""

from collections.abc import Iterator
from contextlib import contextmanager

from fluvial.tables.refresh import key_plan, part_refresh, row_plan


@contextmanager
def refreshed_by_changes() -> Iterator[None]:
    """Take the road of what changed where there is one, whatever it costs."""
    weighed = key_plan.why_full, part_refresh.why_full, row_plan.why_full_of_rows
    refresh_by_changes()
    try:
        yield
    finally:
        key_plan.why_full, part_refresh.why_full, row_plan.why_full_of_rows = weighed


def refresh_by_changes() -> None:
    """As `refreshed_by_changes`, until this process ends."""
    key_plan.why_full = part_refresh.why_full = row_plan.why_full_of_rows = lambda _work: None
