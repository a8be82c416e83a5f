"""
Rows in the place of others, in one commit that other writers cannot get between.
"""

import random
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fluvial.delta.commit import KEYED_TABLE, LostRaceError, append, is_lost_race
from fluvial.delta.log import TableLog
from fluvial.delta.row_swap import (
    FILE,
    ROW,
    WRITTEN,
    can_swap,
    file_sizes,
    located,
    row_changes,
    swap_located,
    takes_order,
    write_together,
)
from fluvial.delta.stamp import Stamp, read_position
from fluvial.delta.upkeep import compact_files, write_checkpoint

pytestmark = pytest.mark.spark


def stamp(batch: int) -> Stamp:
    return Stamp(topic="t", topic_id=None, batch=batch, offsets={0: (batch - 1, batch)})


class Table:
    """A table of `id` and `value`, with a plain dict of what it must hold."""

    def __init__(self, spark: Any, path: Path, *, keys: int, files: int = 2) -> None:
        self.spark = spark
        self.path = str(path)
        self.rows = {f"k{number}": 0 for number in range(keys)}
        frame = spark.createDataFrame([*self.rows.items()], "id string, value long").repartition(files)
        append(frame, self.path, stamp(1), KEYED_TABLE)

    @property
    def version(self) -> int:
        version = TableLog(self.spark, self.path).newest_version()
        assert version is not None
        return version

    def changed(self, changes: Mapping[str, int | None], *, version: int) -> Any:
        """The rows of a swap: a value to write for each key, None to take its row away."""
        batch = self.spark.createDataFrame([*changes.items()], "key string, new long")
        old = located(self.spark, self.path, version).select("id", FILE, ROW)
        return (
            batch.join(old, batch.key == old.id, "left")
            .where(f"new IS NOT NULL OR {FILE} IS NOT NULL")
            .selectExpr("key AS id", "new AS value", FILE, ROW, f"new IS NOT NULL AS {WRITTEN}")
        )

    def swap(self, changes: Mapping[str, int | None], batch: int) -> None:
        version = self.version
        rows = self.changed(changes, version=version)
        swap_located(self.spark, self.path, rows, version=version, stamp=stamp(batch), files=1)
        for key, value in changes.items():
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value

    def check(self) -> None:
        found = self.spark.read.format("delta").load(self.path).collect()
        assert len(found) == len(self.rows)
        assert {row.id: row.value for row in found} == self.rows


@pytest.mark.parametrize("checksums", ["true", pytest.param("false", marks=pytest.mark.rota)])
def test_many_batches_leave_what_a_dict_holds(spark: Any, tmp_path: Path, checksums: str) -> None:
    spark = spark.newSession()
    # What a version's checksum says is used; other writers leave none.
    spark.conf.set("spark.databricks.delta.writeChecksumFile.enabled", checksums)
    spark.conf.set("spark.databricks.delta.incremental.commit.enabled", checksums)
    # Vectors on vectors, rows of swapped files swapped again, and folder names that must be encoded in a path.
    table = Table(spark, tmp_path / "a table, 100% ünïque", keys=300)
    dice = random.Random(11)
    for batch in range(2, 8):
        keys = dice.sample([f"k{number}" for number in range(400)], 60)
        table.swap({key: None if dice.random() < 0.2 else batch for key in keys}, batch)
    table.check()
    assert bool([*Path(table.path, "_delta_log").glob("0*.crc")]) == (checksums == "true")
    position = read_position(TableLog(spark, table.path), "t")
    assert position.stamp is not None
    assert position.stamp.batch == 7
    # A version is a state: the table as it was can be read.
    before = spark.read.format("delta").option("versionAsOf", "0").load(table.path)
    assert before.where("value = 0").count() == 300


def test_a_file_without_rows_is_removed_from_the_table(spark: Any, tmp_path: Path) -> None:
    table = Table(spark, tmp_path / "t", keys=40, files=1)
    table.swap(dict.fromkeys(table.rows, 1), 2)
    table.check()
    assert spark.sql(f"DESCRIBE DETAIL delta.`{table.path}`").first().numFiles == 1
    table.swap(dict.fromkeys(table.rows), 3)
    table.check()
    found = Stamp.of(TableLog(spark, table.path).commit(table.version))
    assert found is not None
    assert found.removed == 40


def test_of_two_writers_of_one_version_the_second_writes_nothing(spark: Any, tmp_path: Path) -> None:
    table = Table(spark, tmp_path / "t", keys=20)
    version = table.version
    late = table.changed({"k1": 9, "new": 9}, version=version)
    table.swap({"k1": 2}, 2)
    # The very batch that is there, and one that is not.
    for batch in (2, 3):
        with pytest.raises(LostRaceError):
            swap_located(spark, table.path, late, version=version, stamp=stamp(batch), files=1)
    table.check()


@pytest.mark.parametrize("checksum", ["its own", "none", "of another commit"])
def test_a_batch_is_swapped_in_once_whatever_its_checksum_says(spark: Any, tmp_path: Path, checksum: str) -> None:
    table = Table(spark, tmp_path / "t", keys=20)
    table.swap({"k1": 2}, 2)
    (first, newest) = (Path(table.path, "_delta_log", f"{version:020d}.crc") for version in (0, 1))
    if checksum != "its own":
        newest.with_name(f".{newest.name}.crc").unlink()
        newest.unlink()
    if checksum == "of another commit":
        # One of a batch that a power cut took: it knows neither this batch nor its files.
        shutil.copyfile(first, newest)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    again = table.changed({"k1": 9, "new": 9}, version=1)
    with pytest.raises(LostRaceError):
        swap_located(spark, table.path, again, version=1, stamp=stamp(2), files=1)
    table.check()
    table.swap({"k1": 3, "k2": None}, 3)
    table.check()


@pytest.mark.parametrize("other", ["swap", "the same batch without a row", "append", "optimize"])
def test_a_commit_in_the_middle_of_a_swap_makes_it_fail(
    other: str, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(spark, tmp_path / "t", keys=20, files=2)
    version = table.version
    # A swap that only adds marks no row of a file, by which Delta would notice as well.
    late = table.changed({"new": 9} if other == "append" else {"k1": 9, "new": 9}, version=version)
    from fluvial.delta import row_swap

    real = row_swap._Transaction.write

    def overtaken(transaction: Any, frame: Any) -> Any:
        monkeypatch.setattr(row_swap._Transaction, "write", real)
        if other == "swap":
            table.swap({"k2": 2}, 2)
        elif other.startswith("the same batch"):
            table.swap({}, 2)
        elif other == "append":
            frame_of_one = spark.createDataFrame([("extra", 5)], "id string, value long")
            append(frame_of_one, table.path, replace(stamp(1), topic="another"))
            table.rows["extra"] = 5
        else:
            spark.sql(f"OPTIMIZE delta.`{table.path}`")
        return real(transaction, frame)

    monkeypatch.setattr(row_swap._Transaction, "write", overtaken)
    with pytest.raises(Exception, match=r"(?i)concurrent|DELTA_") as raised:
        swap_located(spark, table.path, late, version=version, stamp=stamp(2), files=1)
    assert is_lost_race(raised.value)
    table.check()


def test_what_cannot_be_swapped_is_told_beforehand(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = spark.createDataFrame([("a", 1)], "id string, value long")
    good, plain = str(tmp_path / "good"), str(tmp_path / "plain")
    append(frame, good, stamp(1), KEYED_TABLE)
    append(frame, plain, stamp(1))
    assert can_swap(spark, good, frame)
    assert not can_swap(spark, plain, frame)
    assert not can_swap(spark, good, frame.selectExpr("id", "CAST(value AS INT) AS value"))
    assert not can_swap(spark, good, frame.selectExpr("*", "1 AS more"))
    monkeypatch.setattr("fluvial.delta.row_swap.DELTA_VERSIONS", frozenset({"4.3.0"}))
    assert not can_swap(spark, good, frame)


def test_upkeep_writes_small_files_together_and_the_next_swap_goes_on(spark: Any, tmp_path: Path) -> None:
    table = Table(spark, tmp_path / "t", keys=50)
    for batch in range(2, 5):
        table.swap({f"k{batch}": batch, f"k{batch * 7}": None}, batch)
    assert not compact_files(spark, table.path, files_max=50)
    assert compact_files(spark, table.path, files_max=3)
    assert spark.sql(f"DESCRIBE DETAIL delta.`{table.path}`").first().numFiles == 1
    table.check()
    table.swap({"k1": 7}, 5)
    table.check()


def test_upkeep_leaves_rows_in_the_order_of_their_keys(spark: Any, tmp_path: Path) -> None:
    table = Table(spark, tmp_path / "t", keys=200)
    for batch in range(2, 6):
        table.swap({f"k{batch * 3}": batch, f"new {batch}": batch, f"k{batch * 7}": None}, batch)
    log = TableLog(spark, table.path)
    before = log.newest_version()
    assert compact_files(spark.newSession(), table.path, by=["id"], files_max=3)
    assert (log.newest_version(), log.commit(before + 1).operation) == (before + 1, "OPTIMIZE")
    told = spark.sql(f"DESCRIBE HISTORY delta.`{table.path}` LIMIT 1").first().operationMetrics
    assert (told["numRemovedFiles"], told["numAddedFiles"]) == ("6", "1")
    (file,) = log.added_files(before + 1)
    keys = pq.read_table(Path(table.path, file))["id"].to_pylist()
    assert keys == sorted(keys)
    assert len(keys) == len(table.rows)
    # No row came or went, for who follows the changes of the table as for who reads it.
    assert row_changes(spark, table.path, since=before, until=before + 1).count() == 0
    table.check()
    table.swap({"k1": 7, "k3": None}, 6)
    table.check()
    # Of more than one file each holds a range of keys.
    version = log.newest_version()
    names = [file.name for file in file_sizes(spark, table.path)[1]]
    write_together(spark, table.path, names, version=version, by=["id"], files=3)
    parts = [pq.read_table(Path(table.path, each))["id"].to_pylist() for each in log.added_files(version + 1)]
    assert len(parts) == 3
    assert [key for part in sorted(parts) for key in part] == sorted(table.rows)
    table.check()


@pytest.mark.parametrize("kind", ["PARTITIONED BY (id)", "CLUSTER BY (id)", "rows with identities"])
def test_upkeep_leaves_the_order_to_delta_where_a_table_has_one(spark: Any, tmp_path: Path, kind: str) -> None:
    path, made = str(tmp_path / "t"), "" if kind.startswith("rows") else kind
    told = " TBLPROPERTIES ('delta.enableRowTracking' = 'true')" if kind.startswith("rows") else ""
    spark.sql(f"CREATE TABLE delta.`{path}` (id STRING, value BIGINT) USING delta {made}{told}")
    assert not takes_order(spark, path)
    rows = spark.createDataFrame([("b", 1), ("a", 2)], "id string, value long")
    for _ in range(3):
        rows.coalesce(1).write.format("delta").mode("append").save(path)
    identities = "_metadata.row_id" if kind.startswith("rows") else "id"
    before = sorted(spark.read.format("delta").load(path).selectExpr(identities, "value").collect())
    assert compact_files(spark.newSession(), path, by=["id"], files_max=2)
    assert sorted(spark.read.format("delta").load(path).selectExpr(identities, "value").collect()) == before


def test_upkeep_gives_way_to_a_batch(spark: Any, tmp_path: Path) -> None:
    table = Table(spark, tmp_path / "t", keys=20)
    table.swap({"k1": 1}, 2)
    version, files = file_sizes(spark, table.path)
    names = [file.name for file in files]
    assert [file.marked for file in files if file.marked] == [0.1]
    table.swap({"k2": 2}, 3)
    with pytest.raises(LostRaceError, match="chosen at 1"):
        write_together(spark, table.path, names, version=version, by=["id"], files=1)
    table.check()


def test_checkpoints_are_written_beside_batches_and_not_within_them(spark: Any, tmp_path: Path) -> None:
    table = Table(spark, tmp_path / "t", keys=20)
    log = Path(table.path, "_delta_log")
    # By itself Delta writes one with the tenth commit.
    for number in range(9):
        spark.sql(f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ('number' = '{number}')")
    for batch in (2, 3):
        table.swap({f"k{batch}": batch, f"new {batch}": batch}, batch)
    assert table.version == 11
    assert not [*log.glob("*.checkpoint*.parquet")]
    assert write_checkpoint(spark, table.path)
    assert not write_checkpoint(spark, table.path), "there is nothing new to write"
    assert [path.name for path in log.glob("*.checkpoint*.parquet")] == [f"{11:020d}.checkpoint.parquet"]
    table.swap({"k1": 4}, 4)
    table.check()
    # What a reader finds who knows nothing of the table yet.
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    table.check()
