"""Rows of the comparison: what was measured on both brokers, the ratio and what it aims at."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from tests.bench.broker.measuring import Sample

CPU_AIM = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """
    One comparison. With `at_most` a smaller ratio is better; an aim of None means that the row only informs.

    `ours_at_most` is an aim for our figure itself, whatever Kafka's is.
    """

    group: str
    load: str
    unit: str
    ours: float
    kafka: float
    aim: float | None = None
    at_most: bool = False
    ours_at_most: float | None = None

    @property
    def ratio(self) -> float:
        """Ours to Kafka's."""
        return self.ours / self.kafka if self.kafka else float("inf")

    @property
    def reached(self) -> bool | None:
        if self.ours_at_most is not None:
            return self.ours <= self.ours_at_most
        if self.aim is None:
            return None
        return self.ratio <= self.aim if self.at_most else self.ratio >= self.aim

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio, "reached": self.reached}


def row_of_json(values: dict[str, Any]) -> Row:
    return Row(**{name: value for name, value in values.items() if name not in {"ratio", "reached"}})


def throughput_rows(
    group: str,
    load: str,
    ours: Sample,
    kafka: Sample,
    *,
    aim: float | None,
    unit: str = "messages/s",
    cpu_aim: float | None = CPU_AIM,
) -> list[Row]:
    """The rows of a load on two brokers: rate, the broker's CPU and, where single requests were timed, p50 and p99."""
    rows = [
        Row(group=group, load=load, unit=unit, ours=ours.rate, kafka=kafka.rate, aim=aim),
        Row(
            group=group,
            load=load,
            unit="server CPU µs/message",
            ours=ours.cpu_micros,
            kafka=kafka.cpu_micros,
            aim=cpu_aim,
            at_most=True,
        ),
    ]
    if ours.p99_ms:
        rows += [
            Row(group=group, load=load, unit="p50 ms", ours=ours.p50_ms, kafka=kafka.p50_ms),
            Row(group=group, load=load, unit="p99 ms", ours=ours.p99_ms, kafka=kafka.p99_ms, aim=1.0, at_most=True),
        ]
    if ours.end_to_end_p99_ms:
        for unit, mine, other in (
            ("end to end p50 ms", ours.end_to_end_p50_ms, kafka.end_to_end_p50_ms),
            ("end to end p99 ms", ours.end_to_end_p99_ms, kafka.end_to_end_p99_ms),
        ):
            rows.append(Row(group=group, load=load, unit=unit, ours=mine, kafka=other, aim=1.0, at_most=True))
    return rows


def table_of(rows: Iterable[Row], title: str) -> Table:
    """The rows as they are printed."""
    table = Table(title=title)
    for name in ("load", "figure"):
        table.add_column(name, overflow="fold")
    for name in ("ours", "Kafka", "ratio", "aim", ""):
        table.add_column(name, justify="right")
    group = None
    for row in rows:
        if group not in (None, row.group):
            table.add_section()
        group = row.group
        aim = "" if row.aim is None else f"{'≤' if row.at_most else '≥'} {row.aim:g}"
        if row.ours_at_most is not None:
            aim = f"ours ≤ {row.ours_at_most:g}"
        mark = {None: "", True: "reached", False: "short"}[row.reached]
        table.add_row(row.load, row.unit, _shown(row.ours), _shown(row.kafka), f"{row.ratio:.2f}", aim, mark)
    return table


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"
