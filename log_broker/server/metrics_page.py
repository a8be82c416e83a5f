"""
The table of the page on metrics, made from what a node exports.

    python -m log_broker.server.metrics_page docs/metrics.md

writes it again between its marks; everything else on the page is written by hand.
"""

import asyncio
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from prometheus_client.core import Metric

import log_broker
from log_broker.server.embedded import EmbeddedBroker
from log_broker.server.ops.exposition import metrics_registry

MARK, END = "<!-- metrics: made by python -m log_broker.server.metrics_page -->", "<!-- end -->"
UNITS = ("bytes", "seconds")


def main(arguments: Sequence[str]) -> int:
    """Rewrite the table of the named page; return the exit status."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m log_broker.server.metrics_page PAGE\n")
        return 2
    page = Path(arguments[0])
    with log_broker.embedded() as broker:
        text = with_table(page.read_text(encoding="utf-8"), families_of(broker))
    page.write_text(text, encoding="utf-8")
    return 0


def families_of(broker: EmbeddedBroker) -> list[Metric]:
    """Return every metric that a node exports; one that leads the quorum, as a lone broker does, has them all."""

    async def collect() -> list[Metric]:
        return list(metrics_registry(broker.node).collect())

    return asyncio.run_coroutine_threadsafe(collect(), broker.node.loop).result()


def exported_names(family: Metric) -> tuple[str, ...]:
    """Return the names under which Prometheus knows a metric."""
    match family.type:
        case "counter":
            return (f"{family.name}_total",)
        case "histogram":
            return tuple(f"{family.name}_{part}" for part in ("bucket", "sum", "count"))
        case _:
            return (family.name,)


def with_table(page: str, families: Iterable[Metric]) -> str:
    """Return the page with the table of these metrics; raises ValueError for a page without the marks."""
    front, found, rest = page.partition(MARK)
    _, end, back = rest.partition(END)
    if not found or not end:
        raise ValueError(f"the page has no part that begins with {MARK} and ends with {END}")
    rows = [_row(family) for family in sorted(families, key=lambda family: family.name)]
    head = ["| metric | kind | unit | labels | meaning |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([front + MARK, "", *head, *rows, "", END + back])


def _row(family: Metric) -> str:
    names, labels = exported_names(family), getattr(family, "_labelnames", ())
    unit = next((unit for unit in UNITS if family.name.endswith(f"_{unit}")), "")
    shown = names[0] if len(names) == 1 else family.name
    cells = (f"`{shown}`", family.type, unit, ", ".join(f"`{label}`" for label in labels), family.documentation)
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
