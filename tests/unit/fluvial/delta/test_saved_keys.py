"""
The saved index of a table's keys: whatever was committed since, it says what is true, or nothing.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluvial.delta import saved_keys
from fluvial.delta.key_index import Digests, KeyIndex, RowLocations
from fluvial.delta.saved_keys import NAME, IndexedFile, SavedKeys

ABOUT = {"columns": "key"}
NAMES = ["a.parquet", "b.parquet", "c.parquet"]
Rows = Mapping[str, list[tuple[str, int]]]
"""By file, the key and the row number of each row that is to be found."""


def index_of(found: Rows) -> KeyIndex:
    index = KeyIndex(1)
    for name, rows in found.items():
        file = np.full(len(rows), index.file_number(name), np.int64)
        row = np.array([row for _, row in rows], np.int64)
        index.put(Digests.of(key for key, _ in rows), RowLocations(file, row, row * 2, row * 3))
    return index


@st.composite
def tables(draw: st.DrawFn) -> tuple[Rows, dict[str, IndexedFile], Rows]:
    """What a table held as its index was saved, its files at another version, and what these hold."""
    keys = iter(draw(st.permutations([f"key {number}" for number in range(24)])))
    saved: dict[str, list[tuple[str, int]]] = {}
    files: dict[str, IndexedFile] = {}
    held: dict[str, list[tuple[str, int]]] = {}
    for name in NAMES:
        whole = [(next(keys), row) for row in range(draw(st.integers(0, 8)))]
        # A table that is restored has rows again that were marked.
        marked_then, marked_now = (draw(st.sets(st.integers(0, max(len(whole) - 1, 0)))) for _ in range(2))
        was_there, is_there = draw(st.booleans()), draw(st.booleans())
        if was_there:
            saved[name] = [each for each in whole if each[1] not in marked_then]
        if is_there:
            marked_now &= set(range(len(whole)))
            held[name] = [each for each in whole if each[1] not in marked_now]
            marked = np.array(sorted(marked_now), np.uint64)
            files[name] = IndexedFile(rows=len(whole), marked=marked, found=len(held[name]))
    return saved, files, held


@given(tables())
def test_of_a_file_it_has_just_the_rows_that_are_there_or_the_file_is_read_again(
    table: tuple[Rows, dict[str, IndexedFile], Rows],
) -> None:
    saved, files, held = table
    kept = SavedKeys.of(index_of(saved)).still_there(files)
    assert set(kept.names) <= set(held)
    for name in saved.keys() & held.keys():
        # Read again only where it lacks a row.
        assert (name in kept.names) == (set(held[name]) <= set(saved[name]))
    index = kept.index(7)
    assert index.version == 7
    assert len(index) == sum(len(held[name]) for name in kept.names)
    for name in kept.names:
        locations = index.find(Digests.of(key for key, _ in held[name]))
        assert [index.file_name(number) for number in locations.file] == [name] * len(held[name])
        assert locations.row.tolist() == [row for _, row in held[name]]
        assert locations.partition.tolist() == [2 * row for _, row in held[name]]
        assert locations.offset.tolist() == [3 * row for _, row in held[name]]


def test_an_index_goes_on_from_what_was_saved(tmp_path: Path) -> None:
    rows = [(f"key {number}", number) for number in range(100)]
    SavedKeys.of(index_of({"a": rows[:60], "b": rows[60:]})).write(str(tmp_path), ABOUT)
    saved = SavedKeys.read(str(tmp_path), ABOUT)
    assert saved is not None
    marked = np.arange(0, 10, dtype=np.uint64)
    files = {"a": IndexedFile(rows=60, marked=marked, found=50), "b": IndexedFile(rows=100, marked=(), found=40)}
    index = saved.still_there(files).index(2)
    assert len(index) == 90
    gone = np.full(1, -1, np.int64)
    index.put(Digests.of(["key 50"]), RowLocations(gone, gone, gone, gone))
    number = np.full(1, index.file_number("c"), np.int64)
    index.put(Digests.of(["new"]), RowLocations(number, number, number, number))
    assert len(index) == 90
    found = index.find(Digests.of(["key 9", "key 50", "key 99", "new"]))
    assert (found.file >= 0).tolist() == [False, False, True, True]
    assert [index.file_name(each) for each in found.file[2:]] == ["b", "c"]


@pytest.mark.parametrize("places", [range(20), range(20, 4000, 77), range(-400, 0)])
def test_one_bit_that_is_wrong_is_seen(places: range, tmp_path: Path) -> None:
    SavedKeys.of(index_of({"a": [(f"key {number}", number) for number in range(1000)]})).write(str(tmp_path), ABOUT)
    whole = (tmp_path / NAME).read_bytes()
    for place in places:
        torn = bytearray(whole)
        torn[place] ^= 1 << (place % 8)
        (tmp_path / NAME).write_bytes(torn)
        assert SavedKeys.read(str(tmp_path), ABOUT) is None
    (tmp_path / NAME).write_bytes(whole)
    assert SavedKeys.read(str(tmp_path), ABOUT) is not None


@pytest.mark.parametrize("length", [0, 3, 1000, -1])
def test_a_file_that_was_cut_is_none(length: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    SavedKeys.of(index_of({"a": [("key", 0)]})).write(str(tmp_path), ABOUT)
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes()[:length])
    assert SavedKeys.read(str(tmp_path), ABOUT) is None
    assert "damaged and is made again" in caplog.text


def test_what_is_about_other_columns_is_none(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert SavedKeys.read(folder, ABOUT) is None
    SavedKeys.of(index_of({"a": [("key", 0), ("other", 1)]})).write(folder, ABOUT)
    assert SavedKeys.read(folder, ABOUT) is not None
    assert SavedKeys.read(folder, {"columns": "other"}) is None


def test_a_disk_that_is_full_leaves_what_was_saved_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    saved = SavedKeys.of(index_of({"a": [("key", 0)]}))
    saved.write(str(tmp_path), ABOUT)
    before = (tmp_path / NAME).read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        saved.write(str(tmp_path), ABOUT)
    assert "No space left" in caplog.text
    assert (tmp_path / NAME).read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_what_a_killed_process_left_goes_with_a_later_save(tmp_path: Path) -> None:
    left, under_way = tmp_path / f"{NAME}.0", tmp_path / f"{NAME}.1"
    left.touch()
    under_way.touch()
    os.utime(left, (0, 0))
    SavedKeys.of(index_of({"a": [("key", 0)]})).write(str(tmp_path), ABOUT)
    assert sorted(tmp_path.iterdir()) == [tmp_path / NAME, under_way]


def test_it_is_removed_with_what_a_killed_process_left(tmp_path: Path) -> None:
    SavedKeys.of(index_of({"a": [("key", 0)]})).write(str(tmp_path), ABOUT)
    (tmp_path / f"{NAME}.0").touch()
    (tmp_path / "part-0.parquet").touch()
    saved_keys.remove(str(tmp_path))
    assert [each.name for each in tmp_path.iterdir()] == ["part-0.parquet"]
