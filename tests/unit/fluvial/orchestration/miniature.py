"""A project in miniature: declarations, a runner that writes nothing, and a Spark that never starts."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from fluvial.config import Settings
from fluvial.orchestration import SparkResource
from fluvial.tables import Declaration, count, history, pipeline, state
from fluvial.tables.plan.result import RunResult


class NoSpark(SparkResource):
    """Stands for Spark where a test is about everything else."""

    @property
    def session(self) -> Any:
        return SimpleNamespace(table=lambda name: SimpleNamespace(schema=SimpleNamespace(fields=[])))


@pipeline(name="busiest", inputs=["history.orders"])
def busiest(orders: Any) -> Any:
    """The busiest hours."""
    return orders


DECLARATIONS: Mapping[str, Declaration] = {
    declaration.table: declaration
    for declaration in (
        history("orders"),
        state("customers", topic="orders", key="customer", fields={"orders": count()}),
        busiest,
    )
}


def result_of(table: str, **values: Any) -> RunResult:
    """A run that wrote seven rows of one partition."""
    usual: dict[str, Any] = {
        "kind": table.partition(".")[0],
        "skipped": False,
        "version_before": None,
        "version_after": 0,
        "offsets": {},
        "rows": 7,
        "quarantined": 0,
        "seconds": 0.5,
    }
    return RunResult(table=table, **{**usual, **values})


class Runner:
    """Stands for the runner of declarations: gives what it is told, or an ordinary result, and keeps what was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.outcomes: dict[str, RunResult | Exception] = {}

    def __call__(
        self, declaration: Declaration, settings: Settings, spark: Any, *, progress: Any = None, window: Any = None
    ) -> RunResult:
        progress(f"reading {declaration.table}")
        self.asked.append(declaration.table)
        outcome = self.outcomes.get(declaration.table, result_of(declaration.table))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome
