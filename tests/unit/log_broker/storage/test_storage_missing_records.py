"""Offsets that the disk has lost in the middle of a log: whoever asks for them is told, and so is the start."""

import shutil
from pathlib import Path

import pytest
from partition_bench import Bench

from log_broker.config.broker import TopicConfig
from log_broker.records import build_batch, iterate_records
from log_broker.storage.files import OsFileSystem
from log_broker.storage.log_reader import MissingRecordsError
from log_broker.storage.segment_files import file_name

CONFIG = TopicConfig.from_overrides({"segment.bytes": "400", "index.interval.bytes": "100"})
END = 20


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return the folder of a log of twenty records, five in each segment."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    bench = Bench(OsFileSystem(), CONFIG, directory=directory)
    for number in range(END):
        bench.append(build_batch([(1, b"k", b"%06d" % number, ())]))
        bench.settle()
    assert [segment.base_offset for segment in bench.log.segments] == [0, 5, 10, 15]
    bench.close()
    return directory


def lose(directory: Path, how: str) -> None:
    """Have the disk lose the offsets 7 to 9, in the way that a power cut takes what no sync has covered."""
    path = directory / file_name(5, ".log")
    content = path.read_bytes()
    kept = len(content) * 2 // 5
    rest = b"" if how == "cut" else bytes(len(content) - kept)
    path.write_bytes(content[:kept] + rest)


def values(bench: Bench, offset: int) -> list[bytes | None]:
    data = bench.log.read(offset, 100, END, at_least_one=True)
    return [record.value for record in iterate_records(data[: len(data) // 75 * 75])]


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("how", ["cut", "zeroed"])
def test_who_reads_what_is_missing_is_told(directory: Path, how: str, clean: bool) -> None:
    lose(directory, how)
    bench = Bench(OsFileSystem(), CONFIG, directory=directory, clean=clean, recovery_point=END)
    for offset in range(END):
        if offset in range(7, 10):
            with pytest.raises(
                MissingRecordsError, match=rf"offsets {offset} to 9 are missing.*{file_name(5, '.log')}"
            ):
                bench.log.read(offset, 100, END, at_least_one=True)
        else:
            assert values(bench, offset)[0] == b"%06d" % offset


@pytest.mark.parametrize("how", ["cut", "zeroed"])
def test_recovery_tells_what_is_missing_before_the_recovery_point(
    directory: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    lose(directory, how)
    bench = Bench(OsFileSystem(), CONFIG, directory=directory, recovery_point=END)
    assert bench.log.missing == [(7, 10)]
    assert "offsets 7 to 9 are missing" in caplog.text
    assert "DeleteRecords" in caplog.text
    assert bench.log.end_offset == END, "what lies behind may have been acknowledged as durable"


def test_a_sound_log_misses_nothing(directory: Path) -> None:
    bench = Bench(OsFileSystem(), CONFIG, directory=directory, recovery_point=END)
    assert not bench.log.missing


def test_behind_the_recovery_point_the_log_is_cut_where_records_are_missing(directory: Path) -> None:
    lose(directory, "cut")
    bench = Bench(OsFileSystem(), CONFIG, directory=directory, recovery_point=0)
    assert bench.log.end_offset == 7
    assert [record.value for record in bench.read_all()] == [b"%06d" % number for number in range(7)]


@pytest.mark.parametrize("at", range(5, 10))
@pytest.mark.parametrize("torn", [False, True])
def test_a_damaged_offset_in_a_full_segment_that_was_not_synced_is_found(directory: Path, at: int, torn: bool) -> None:
    """It stands outside its batch's checksum; taken for what it says, offsets would be skipped or given out twice."""
    path = directory / file_name(5, ".log")
    sound = path.read_bytes()
    size = len(sound) // 5
    for damaged in (0, at - 1, at + 1, at + 2, 12, 65_371):
        content = bytearray(sound)
        content[(at - 5) * size : (at - 5) * size + 8] = damaged.to_bytes(8, "big")
        path.write_bytes(content[:-1] if torn else content)
        copy = directory.with_name(f"copy-{damaged}")
        shutil.copytree(directory, copy)
        bench = Bench(OsFileSystem(), CONFIG, directory=copy, recovery_point=0)
        assert bench.log.end_offset == at, damaged
        assert [record.value for record in bench.read_all()] == [b"%06d" % number for number in range(at)]
        shutil.rmtree(copy)
