"""
What Spark makes of the error of a guard, word for word: which guard fired is read from it, and from nothing else.
"""

from pathlib import Path
from typing import Any

import pytest

from fluvial.delta.failures import texts_of
from fluvial.tables.plan.guards import Care, Guard, raised, unless

pytestmark = pytest.mark.spark

PLACE = ("'t.a-b' AS _topic", "3 AS _partition", "id AS _offset")


def failure(match: str, work: Any) -> BaseException:
    with pytest.raises(Exception, match=match) as found:
        work()
    return found.value


@pytest.mark.parametrize("guard", Guard)
def test_which_guard_fired_and_where_is_in_the_text_of_spark(spark: Any, tmp_path: Path, guard: Guard) -> None:
    rows = spark.range(10).selectExpr(*PLACE)
    stopped = rows.where(unless("_offset = 7", guard))
    table = str(tmp_path / "table")
    rows.write.format("delta").save(table)
    errors = {
        "asked for": failure("fluvial-guard", stopped.collect),
        "after a shuffle": failure("fluvial-guard", stopped.groupBy("_partition").count().collect),
        "appended": failure("fluvial-guard", lambda: stopped.write.format("delta").mode("append").save(table)),
    }
    place = ("t.a-b", 3, 7) if guard in {Guard.KEYLESS, Guard.BINARY_KEY} else None
    text = f"[USER_RAISED_EXCEPTION] fluvial-guard: {guard}{' at t.a-b-3, offset 7' if place else ''} SQLSTATE: P0001"
    for how, error in errors.items():
        assert text in texts_of(error), how
        assert raised(error) == (guard, place), how
    assert spark.read.format("delta").load(table).count() == 10


def test_a_failure_that_only_quotes_the_plan_is_not_a_guards(spark: Any) -> None:
    rows = spark.range(3).selectExpr(*PLACE)
    planned = rows.where(unless("_offset > 5", Guard.TOMBSTONE))
    others = [
        failure("something else", planned.selectExpr("assert_true(_offset < 1, 'something else')").collect),
        failure("nowhere", lambda: planned.where(f"nowhere AND {unless('_offset > 5', Guard.KEYLESS)}")),
    ]
    for error in others:
        assert raised(error) is None
        assert Care(takes_keyless=True).after(error) is None
