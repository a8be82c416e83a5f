"""Stored batches that nobody can read are found, and readers pass them when they are emptied."""

from pathlib import Path

import pytest

from log_broker.config.broker import TopicConfig
from log_broker.records import Codec, batches_in, build_batch, iterate_records, read_header
from log_broker.records.batch import HEADER_BYTES, place, seal
from log_broker.storage.files import OsFileSystem
from log_broker.storage.memory_files import MemoryFileSystem
from log_broker.storage.recovery import open_partition
from log_broker.storage.segment_files import file_name
from log_broker.storage.unreadable import empty_batches, find_unreadable

SOUND = build_batch([(1000 + at, b"k", b"v%d" % at, ()) for at in range(3)])


def garbage(codec: Codec = Codec.NONE, count: int = 2) -> bytearray:
    batch = build_batch(
        [(1, None, b"v" * 20, ())] * count, codec=codec, producer_id=7, producer_epoch=1, base_sequence=4
    )
    batch[HEADER_BYTES:] = b"\xff" * (len(batch) - HEADER_BYTES)
    seal(batch)
    return batch


def far_delta() -> bytearray:
    batch = build_batch([(1, None, b"v", ())])
    batch[HEADER_BYTES + 3] = 0x60
    seal(batch)
    return batch


def stored(directory: Path, *batches: bytearray, base: int = 0, epoch: int = 3) -> int:
    """Write a segment by hand, as a broker that checked less has; return where it ends."""
    directory.mkdir(parents=True, exist_ok=True)
    offset, content = base, b""
    for batch in batches:
        copy = bytearray(batch)
        place(copy, base_offset=offset, leader_epoch=epoch)
        offset += read_header(copy).last_offset_delta + 1
        content += copy
    (directory / file_name(base, ".log")).write_bytes(content)
    return offset


def reopened(directory: Path):
    config = TopicConfig.from_overrides({})
    return open_partition(
        OsFileSystem(), directory, "t", config, recovery_point=0, log_start_offset=0, clean=False, now_ms=0
    )[1]


def read_on(directory: Path, end: int) -> list[int]:
    """The offsets that a consumer gets who reads from the front."""
    log = reopened(directory)
    found, offset = [], 0
    while offset < end:
        data = log.read(offset, 1 << 20, end, at_least_one=True)
        for at, header in batches_in(data):
            found += [record.offset for record in iterate_records(data[at : at + header.size])]
            offset = header.last_offset + 1
    log.close_files()
    return found


def test_unreadable_batches_are_found_and_passed(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    middle = stored(folder, SOUND, garbage(), SOUND, far_delta())
    end = stored(folder, SOUND, garbage(Codec.ZSTD), SOUND, base=middle)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    files = OsFileSystem()
    found = list(find_unreadable(files, folder))
    assert [each.header.base_offset for each in found] == [3, 8, middle + 3]
    assert "offset delta 48" in found[1].reason
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before, "looking changes nothing"

    assert empty_batches(files, folder, {each.header.base_offset for each in found}) == 3

    assert list(find_unreadable(files, folder)) == []
    gone = {3, 4, 8, middle + 3, middle + 4}
    assert read_on(folder, end) == [at for at in range(end) if at not in gone]
    log = reopened(folder)
    assert log.end_offset == end
    data = log.read(3, 1, end, at_least_one=True)
    kept = read_header(data)
    assert (kept.base_offset, kept.last_offset, kept.record_count, kept.leader_epoch) == (3, 4, 0, 3)
    assert (kept.producer_id, kept.producer_epoch, kept.base_sequence) == (7, 1, 4), "its producer is still known"
    log.close_files()


def test_replicas_become_the_same_bytes(tmp_path: Path) -> None:
    contents = []
    for name in ("a", "b"):
        folder = tmp_path / name / "t-0"
        stored(folder, SOUND, garbage(), SOUND)
        empty_batches(OsFileSystem(), folder, {3})
        contents.append((folder / file_name(0, ".log")).read_bytes())
    assert contents[0] == contents[1]


def test_sound_batches_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    compacted = bytearray(build_batch([(1, b"k", b"v", ()), (2, b"l", b"w", ())]))
    compacted = bytearray(compacted[: HEADER_BYTES + 9])  # compaction has kept the first record alone
    for offset, number, width in ((8, len(compacted) - 12, 4), (57, 1, 4)):
        compacted[offset : offset + width] = number.to_bytes(width, "big")
    seal(compacted)
    stored(folder, SOUND, compacted, build_batch([(1, None, b"v", (("h", None),))] * 9, codec=Codec.LZ4))
    assert list(find_unreadable(OsFileSystem(), folder)) == []


def test_behind_damage_nothing_is_looked_at(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    stored(folder, SOUND, garbage(), SOUND)
    path = folder / file_name(0, ".log")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    found = list(find_unreadable(OsFileSystem(), folder))
    assert [each.header is None for each in found] == [False, True]


@pytest.mark.parametrize("steps", range(12))
def test_a_power_cut_leaves_the_old_segment_or_the_new_one(tmp_path: Path, steps) -> None:
    folder = tmp_path / "t-0"
    end = stored(folder, SOUND, garbage(), SOUND)
    content = (folder / file_name(0, ".log")).read_bytes()
    files = _Stopping(MemoryFileSystem(), steps)
    directory = Path("data/t-0")
    disk = files.disk
    disk.make_directory(directory)
    file = disk.open(directory / file_name(0, ".log"))
    file.write_at(0, [content])
    file.sync()
    for each in (directory, directory.parent, directory.parent.parent):
        disk.sync_directory(each)
    try:
        empty_batches(files, directory, {3})
    except InterruptedError:
        disk = disk.crash()
    config = TopicConfig.from_overrides({})
    log = open_partition(disk, directory, "t", config, recovery_point=end, log_start_offset=0, clean=False, now_ms=0)[1]
    assert log.end_offset == end
    data = log.read(3, 1, end, at_least_one=True)
    assert read_header(data).record_count in {0, 2}
    assert read_header(log.read(5, 1, end, at_least_one=True)).record_count == 3


class _Stopping:
    """A disk whose process is gone after so many steps that change something."""

    def __init__(self, disk: MemoryFileSystem, steps: int) -> None:
        self.disk = disk
        self._steps = steps

    def __getattr__(self, name: str):
        action = getattr(self.disk, name)
        if name not in {"rename", "remove", "sync_directory", "open"}:
            return action

        def counted(*given):
            self._steps -= 1
            if self._steps < 0:
                raise InterruptedError
            return action(*given)

        return counted
