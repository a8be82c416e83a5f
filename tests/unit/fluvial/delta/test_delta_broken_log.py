"""A table's log that is not whole is refused with the file's name; no JVM is needed to see it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fluvial.delta.errors import (
    BrokenLogError,
    DiskFullError,
    LostFileError,
    StorageError,
    TableError,
    folder_of,
    plain_path,
    table_of,
)
from fluvial.delta.failures import explain_failures, explained
from fluvial.delta.log import TableLog
from fluvial.delta.stamp import Stamp, read_position

TABLE = "state.readings"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Three commits of batches, the first of them in a checkpoint."""
    folder = tmp_path / "warehouse" / "state" / "readings"
    log = folder / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.checkpoint.parquet").touch()
    for version in range(3):
        stamp = Stamp(topic="t", topic_id=None, batch=version + 1, offsets={0: (version, version + 1)})
        actions: list[dict[str, Any]] = [
            {
                "commitInfo": {
                    "operation": "STREAMING UPDATE",
                    "userMetadata": stamp.as_json(),
                    "operationMetrics": {"numOutputRows": "1"},
                }
            },
            {"add": {"path": f"part-{version}.parquet"}},
            {"txn": {"appId": "fluvial/t", "version": version + 1}},
        ]
        commit(folder, version).write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    return folder


def commit(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020d}.json"


def lines(file: Path, keep: slice) -> None:
    file.write_text("".join(file.read_text().splitlines(keepends=True)[keep]))


def test_a_whole_log_is_read(table: Path) -> None:
    assert read_position(TableLog(None, str(table)), TABLE).ends == {0: 3}


DAMAGES: list[tuple[str, int, Callable[[Path], Any], str]] = [
    ("newest empty", 2, lambda file: file.write_text(""), "is empty"),
    ("newest of blank lines", 2, lambda file: file.write_text("\n\n"), "is empty"),
    ("newest torn", 2, lambda file: file.write_bytes(file.read_bytes()[:-20]), "is torn"),
    ("newest of zeros", 2, lambda file: file.write_bytes(bytes(300)), "is torn"),
    ("newest no text", 2, lambda file: file.write_bytes(b"\xff\xfe{}"), "is torn"),
    ("newest a list", 2, lambda file: file.write_text("[]\n"), "is torn"),
    ("newest without its rows", 2, lambda file: lines(file, slice(1)), "is cut off"),
    ("newest without its number", 2, lambda file: lines(file, slice(2)), "is cut off"),
    ("older empty", 1, lambda file: file.write_text(""), "is empty"),
    ("older torn", 1, lambda file: file.write_bytes(file.read_bytes()[:-20]), "is torn"),
    ("older missing", 1, lambda file: file.unlink(), "is missing"),
    ("newest a folder", 2, lambda file: (file.unlink(), file.mkdir()), "is not what Delta keeps there"),
]


@pytest.mark.parametrize(
    ("version", "damage", "says"), [each[1:] for each in DAMAGES], ids=[each[0] for each in DAMAGES]
)
def test_what_is_not_whole_is_named(table: Path, version: int, damage: Callable[[Path], Any], says: str) -> None:
    damage(commit(table, version))
    log = TableLog(None, str(table))
    with pytest.raises(BrokenLogError) as told:
        read_position(log, TABLE)
    assert (told.value.table, told.value.file) == (TABLE, str(commit(table, version)))
    assert f"{commit(table, version)} in the Delta log of {TABLE} {says}" in str(told.value)
    assert f"`fluvial run --rebuild {TABLE}`" in str(told.value)
    # What can be read still tells whether the table was adopted.
    assert {each.version for each in log.whole_commits()} == {0, 1, 2} - {version}


def test_a_commit_that_was_cut_off_behind_its_number_lacks_its_rows(table: Path) -> None:
    """Spark's own writes have the files last."""
    stamp = Stamp(topic="t", topic_id=None, batch=4, offsets={0: (3, 4)})
    info = {"operation": "WRITE", "userMetadata": stamp.as_json(), "operationMetrics": {"numOutputRows": "1"}}
    actions = [{"commitInfo": info}, {"txn": {"appId": "fluvial/t", "version": 4}}]
    commit(table, 3).write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    with pytest.raises(BrokenLogError, match="is cut off"):
        read_position(TableLog(None, str(table)), TABLE)
    with commit(table, 3).open("a") as file:
        file.write('{"add": {"path": "part-3.parquet"}}\n')
    assert read_position(TableLog(None, str(table)), TABLE).ends == {0: 4}


def test_what_lies_in_a_checkpoint_is_not_asked_for(table: Path) -> None:
    commit(table, 0).write_text("")
    assert read_position(TableLog(None, str(table)), TABLE).ends == {0: 3}
    commit(table, 0).unlink()
    assert read_position(TableLog(None, str(table)), TABLE).ends == {0: 3}


def test_a_checkpoint_alone_is_no_new_table(table: Path) -> None:
    for version in range(3):
        commit(table, version).unlink()
    with pytest.raises(BrokenLogError, match=rf"{0:020d}\.json in the Delta log of state\.readings is missing"):
        read_position(TableLog(None, str(table)), TABLE)


def test_commits_of_other_writers_are_read_as_they_write_them(table: Path) -> None:
    other = '{ "commitInfo" : {"operation": "WRITE", "operationMetrics": {"numOutputRows": "3"}}}\n { "add" : {}}'
    commit(table, 3).write_text(other)
    commit(table, 4).write_text('{"add": {"path": "no-commit-info"}}')
    log = TableLog(None, str(table))
    assert read_position(log, TABLE).version == 4
    assert log.commit(3).operation == "WRITE"


@pytest.mark.parametrize(
    "stamp", ['{"fluvial": {"offsets": {}}}', '{"fluvial": {"offsets": 3}}', '{"fluvial": {"offsets": {"0": [1]}}}']
)
def test_a_stamp_that_is_not_as_ours_is_not_passed_over(table: Path, stamp: str) -> None:
    info = {"operation": "WRITE", "userMetadata": stamp}
    commit(table, 3).write_text(json.dumps({"commitInfo": info}) + "\n")
    with pytest.raises(TableError, match=r"version 3 of the table .* upgrade"):
        read_position(TableLog(None, str(table)), TABLE)


def test_a_file_where_the_log_must_be_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "history" / "t"
    folder.mkdir(parents=True)
    (folder / "_delta_log").write_text("")
    with pytest.raises(BrokenLogError, match=r"a file where a folder must be"):
        read_position(TableLog(None, str(folder)), "history.t")
    assert list(TableLog(None, str(folder)).whole_commits()) == []


def test_what_the_system_says_is_told_with_the_table() -> None:
    full = explained(OSError(28, os.strerror(28), "/w/state/t/part-1.parquet"), "state.t", "/w/state/t")
    assert isinstance(full, DiskFullError)
    assert full.retriable
    assert "/w/state/t/part-1.parquet: no space left on device" in str(full)
    refused = explained(PermissionError(13, os.strerror(13), "/w/state/t"), "state.t", "/w/state/t")
    assert type(refused) is StorageError
    assert not refused.retriable
    assert "/w/state/t: Permission denied" in str(refused)


def test_errors_of_ours_and_mistakes_pass_as_they_are() -> None:
    ours = TableError("said already")
    assert explained(ours, "state.t") is ours
    assert explained(ValueError("a mistake in the code"), "state.t") is None
    assert explained(FileNotFoundError(2, os.strerror(2), "a file of the user's"), "marts.t") is None
    with pytest.raises(KeyError, match="mistake"), explain_failures("state.t"):
        raise KeyError("mistake")


@pytest.mark.parametrize(
    ("file", "table", "folder"),
    [
        ("file:///w/state/t/part-1.parquet", "state.t", "/w/state/t"),
        ("file:/w/history/t/_delta_log/1.json", "history.t", "/w/history/t"),
        ("/state/w/_rebuild/state.t/state/t/x.bin", "state.t", "/state/w/_rebuild/state.t/state/t"),
        ("s3a://bucket/w/marts/m/x.parquet", "marts.m", "s3a://bucket/w/marts/m"),
        ("/elsewhere/x.parquet", None, "/elsewhere"),
    ],
)
def test_a_file_tells_its_table(file: str, table: str | None, folder: str) -> None:
    plain = plain_path(file)
    assert (table_of(plain), folder_of(plain)) == (table, folder)


def test_the_repair_fits_the_table() -> None:
    told = {
        "/w/state/t/x.parquet": "`fluvial run --rebuild state.t` builds the table again from the log",
        "/w/marts/m/x.parquet": "`fluvial run --rebuild marts.m` builds the table again from its inputs",
        "/w/quarantine/t/x.parquet": "move /w/quarantine/t away",
        "/elsewhere/x.parquet": "is missing: restore it",
    }
    for file, repair in told.items():
        assert repair in str(LostFileError(file, "is missing"))
    assert str(LostFileError("/w/state/t/d.bin", "is missing")).startswith(
        "the deletion vector file /w/state/t/d.bin of"
    )
