"""
Sail's answers beside Spark's: what differs is Spark's (`fluvial.query.routing`), what Sail refuses goes there anyway.

`make test` asks a sixth of the queries; `make rota` all of them, and hundreds drawn by dice (FLUVIAL_SEED).
"""

import math
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sail_queries import BY_HAND, generated, make_tables

from fluvial.config import Settings
from fluvial.query.engine import Answer, Door, Engine, RoutingError
from fluvial.query.sail import SailError
from fluvial.spark.session import build_session, register_tables, run_sql
from tests.bench.ask.__main__ import QUESTIONS, build, measure

pytest.importorskip("pysail", reason="Sail is an extra: fluvial[sql]")

pytestmark = pytest.mark.spark

IN_ROTA = os.environ.get("FLUVIAL_ROTA") == "1"
SEED = int(os.environ.get("FLUVIAL_SEED", "1"))
GENERATED = 300


@dataclass(frozen=True, slots=True)
class Rows:
    """An answer: columns by name and type, and its rows without their order."""

    columns: Sequence[tuple[str, str]]
    rows: Counter[str]


class Engines:
    """Both engines over one warehouse."""

    def __init__(self, spark: Any, settings: Settings) -> None:
        self._spark, self._settings = spark, settings
        self.sail = self._door(Engine.SAIL)
        self.spark = self._door(Engine.SPARK)

    def ask(self, door: Door, statement: str) -> Rows:
        """Ask one of them; raises what it raises."""
        found: list[Rows] = []

        def take(answer: Answer) -> None:
            rows = Counter(repr([_plain(value) for value in row]) for row in answer.rows())
            found.append(Rows(answer.columns, rows))

        door.answer(statement, take, again=found.clear)
        return found[0]

    def close(self) -> None:
        self.sail.close()
        self.spark.close()

    def _door(self, engine: Engine) -> Door:
        return Door(
            settings=self._settings,
            ask_spark=lambda statement: run_sql(self._spark, self._settings, statement),
            say=lambda _: None,
            engine=engine,
        )


def _shown(column: tuple[str, str]) -> tuple[str, str]:
    """
    What of a column is held to Spark's: the name that a query gives it, and the type as far as values show it.

    An expression without an alias has the name that its engine makes up; widths of integers and digits of decimals
    before the point do not show.
    """
    name, kind = column
    kind = re.sub(r"decimal\(\d+,", "decimal(", re.sub(r"\b(tinyint|smallint|int|bigint)\b", "integer", kind))
    kind = "interval" if kind.startswith("interval") else kind
    return (name if re.fullmatch(r"\w+", name) and name != "is_not_null" else "", kind)


def _plain(value: Any) -> Any:
    """A value as both engines have it; the last digits of a sum of doubles are those of its order."""
    match value:
        case float() if math.isfinite(value):
            return 0.0 if abs(value) < 1e-12 and value > -1e-12 and abs(value) > 1e-300 else float(f"{value:.9g}")
        case bytes() | bytearray():
            return bytes(value)
        case Decimal():
            return str(value)
        case dict():
            return sorted((repr(_plain(key)), _plain(each)) for key, each in value.items())
        case list() | tuple():
            return [_plain(each) for each in value]
    return value


@pytest.fixture(scope="module")
def engines(base_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    os.environ["TZ"] = "UTC"
    time.tzset()
    settings = replace(base_settings, warehouse=str(tmp_path_factory.mktemp("both")))
    spark = build_session(settings, "fluvial tests")
    make_tables(spark, settings.warehouse)
    register_tables(spark, settings)
    with closing(Engines(spark, settings)) as engines:
        yield engines


def difference(engines: Engines, statement: str) -> str | None:
    """What Sail answers otherwise than Spark; None where it answers the same or leaves the statement to Spark."""
    try:
        sail = engines.ask(engines.sail, statement)
    except (SailError, RoutingError):
        return None
    try:
        spark = engines.ask(engines.spark, statement)
    except Exception as error:
        return f"Spark refuses what Sail answers: {str(error).splitlines()[0]}"
    if list(map(_shown, sail.columns)) != list(map(_shown, spark.columns)):
        pairs = [pair for pair in zip(sail.columns, spark.columns, strict=False) if _shown(pair[0]) != _shown(pair[1])]
        return f"columns, Sail's and Spark's: {pairs}"
    if sail.rows != spark.rows:
        return f"only Sail {list(sail.rows - spark.rows)[:2]}, only Spark {list(spark.rows - sail.rows)[:2]}"
    return None


def report(engines: Engines, statements: Sequence[str]) -> str:
    """The statements whose answers differ, one a line."""
    told = ((statement, difference(engines, statement)) for statement in statements)
    return "\n".join(f"{statement}\n    {found}" for statement, found in told if found is not None)


def test_answers_are_sparks_own(engines: Engines) -> None:
    statements = BY_HAND if IN_ROTA else BY_HAND[SEED % 6 :: 6]
    assert not report(engines, statements)


@pytest.mark.skipif(not IN_ROTA, reason="takes minutes: make rota, or FLUVIAL_ROTA=1")
def test_answers_are_sparks_own_whatever_is_asked(engines: Engines) -> None:
    assert not report(engines, list(generated(SEED, GENERATED))), f"FLUVIAL_SEED={SEED}"


@pytest.mark.rota
def test_the_benchmark_asks_both_of_a_state_that_runs_have_changed(
    base_settings: Settings, spark: Any, tmp_path: Path
) -> None:
    settings = replace(base_settings, warehouse=str(tmp_path / "warehouse"))
    build(spark, settings.warehouse, rows=300, batches=2)
    register_tables(spark, settings)
    table, _ = measure(settings, spark, rounds=1)
    assert table.row_count == len(QUESTIONS)
