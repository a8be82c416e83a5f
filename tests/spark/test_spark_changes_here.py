"""The rows that commits brought and took, read without Spark: the same as Delta's own reader of changes has."""

from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fluvial.delta.changes_here import changes_here
from fluvial.delta.errors import LostFileError
from fluvial.delta.log import TableLog
from fluvial.delta.row_swap import row_changes

pytestmark = pytest.mark.spark

COLUMNS = "id bigint, name string, at timestamp, price decimal(9,2), share double, born date, raw binary, small tinyint"


def rows(random: Random, count: int) -> list[tuple[Any, ...]]:
    """Rows of few keys, some values null, among them moments before 1970 and old dates."""
    made = []
    for _ in range(count):
        at = datetime.fromtimestamp(random.randint(-(10**9), 2 * 10**9) + random.random(), UTC)
        row = (
            random.randint(0, 9),
            random.choice(["a", "ä", ""]),
            at,
            Decimal(random.randint(-(10**9), 10**9)) / 100,
            random.choice([0.5, -1.0, float("inf")]),
            datetime(random.randint(1, 2030), 3, 1, tzinfo=UTC).date(),
            bytes([random.randint(0, 255)]),
            random.randint(-128, 127),
        )
        made.append(tuple(value if random.random() > 0.1 else None for value in row))
    return made


def multiset(frame: Any) -> Counter[str]:
    return Counter(str(row) for row in frame.collect())


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.rota) for seed in range(1, 5))])
def test_changes_read_here_are_those_that_delta_reads(seed: int, spark: Any, tmp_path: Path) -> None:
    random, path = Random(seed), str(tmp_path / "table")

    def add(count: int) -> None:
        frame = spark.createDataFrame(rows(random, count), COLUMNS).repartition(random.randint(1, 2))
        frame.write.format("delta").mode("append").option("delta.enableDeletionVectors", "true").save(path)

    add(20)
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (later string)")
    statements = [
        "UPDATE {} SET name = 'changed', later = 'now' WHERE id = {key}",
        "DELETE FROM {} WHERE id = {key} AND share > 0",
        "DELETE FROM {} WHERE id = {key}",
        "OPTIMIZE {}",
        "RESTORE TABLE {} TO VERSION AS OF {version}",
    ]
    for _ in range(8):
        newest = TableLog(spark, path).newest_version()
        statement = random.choice([*statements, ""])
        if statement:
            version = random.randint(1, newest or 1)
            spark.sql(statement.format(f"delta.`{path}`", key=random.randint(0, 9), version=version))
        else:
            add(random.randint(1, 9))
    newest = TableLog(spark, path).newest_version()
    assert newest is not None
    spans = [(1, newest), *((version, version + 1) for version in range(1, newest))]
    for since, until in spans:
        expected = row_changes(spark, path, since=since, until=until)
        found = changes_here(spark, path, since=since, until=until)
        assert expected is not None
        assert found is not None
        assert found.schema.simpleString() == expected.schema.simpleString()
        assert multiset(found) == multiset(expected), (since, until)


def test_nested_values_are_for_spark_to_read_and_a_lost_file_is_named(spark: Any, tmp_path: Path) -> None:
    nested, plain = str(tmp_path / "nested"), str(tmp_path / "plain")
    for path, column in ((nested, "named_struct('a', id) AS it"), (plain, "id AS it")):
        for _ in range(2):
            spark.range(3).selectExpr(column).write.format("delta").mode("append").save(path)
    assert changes_here(spark, nested, since=0, until=1) is None
    for action in TableLog(None, plain).actions(1):
        if "add" in action:
            (Path(plain) / action["add"]["path"]).unlink()
    with pytest.raises(LostFileError, match=r"part-.*parquet"):
        changes_here(spark, plain, since=0, until=1)
