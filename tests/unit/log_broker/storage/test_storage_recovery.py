"""Starts after crashes, on real files: what is torn is cut, what was acknowledged stays, what is lost is made again."""

import shutil
import struct
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_bench import DIRECTORY, Bench

from log_broker.config.broker import TopicConfig
from log_broker.errors import ErrorCode
from log_broker.records import build_batch, iterate_records, read_header
from log_broker.storage.checkpoints import (
    GAPS_FILE,
    LEADER_EPOCH_FILE,
    decode_epochs,
    decode_offsets,
    decode_producers,
    decode_topic_id,
    encode_epochs,
    encode_offsets,
)
from log_broker.storage.files import OsFileSystem
from log_broker.storage.memory_files import MemoryFileSystem

CONFIG = TopicConfig.from_overrides({"segment.bytes": "2000", "index.interval.bytes": "200"}, None)
BATCHES = 60


def value(at: int) -> bytes:
    return b"value %04d" % at


def open_bench(directory: Path, *, clean: bool = False, recovery_point: int = 0) -> Bench:
    return Bench(OsFileSystem(), CONFIG, directory=directory, clean=clean, recovery_point=recovery_point)


def written_log(directory: Path, *, batches: int = BATCHES) -> Bench:
    directory.mkdir(parents=True, exist_ok=True)
    bench = open_bench(directory)
    for at in range(batches):
        bench.append(build_batch([(1000 + at, b"k", value(at), ())], producer_id=5, producer_epoch=0, base_sequence=at))
        bench.settle()
    return bench


def crashed(bench: Bench) -> Path:
    """Let the process die: nothing is written any more."""
    bench.log.close_files()
    return bench.directory


def values(bench: Bench) -> list[bytes | None]:
    return [record.value for record in bench.read_all()]


def last_segment(directory: Path) -> Path:
    return max(directory.glob("*.log"))


def test_everything_is_there_after_a_crash(tmp_path) -> None:
    directory = crashed(written_log(tmp_path / "t-0"))
    assert len(list(directory.glob("*.log"))) > 2
    again = open_bench(directory)
    assert values(again) == [value(at) for at in range(BATCHES)]
    again.append(build_batch([(1, None, b"more", ())]))
    again.settle()
    assert values(again)[-1] == b"more"


@settings(max_examples=30, deadline=None)
@given(cut=st.integers(1, 1500))
def test_a_torn_tail_is_cut_at_the_last_whole_batch(tmp_path_factory, cut) -> None:
    directory = crashed(written_log(tmp_path_factory.mktemp("torn") / "t-0", batches=20))
    torn = last_segment(directory)
    content = torn.read_bytes()
    torn.write_bytes(content[:-cut] if cut < len(content) else b"")

    again = open_bench(directory)

    found = values(again)
    assert found == [value(at) for at in range(len(found))]
    assert len(found) < 20
    assert torn.stat().st_size == again.log.segments[-1].size, "the rest is gone from the file too"
    again.append(build_batch([(1, None, b"more", ())]))
    again.settle()
    assert values(again) == [*found, b"more"]


@settings(max_examples=30, deadline=None)
@given(at=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_a_flipped_bit_in_the_tail_cuts_there(tmp_path_factory, at, bit) -> None:
    directory = crashed(written_log(tmp_path_factory.mktemp("flipped") / "t-0", batches=20))
    damaged = last_segment(directory)
    content = bytearray(damaged.read_bytes())
    position = at % len(content)
    content[position] ^= 1 << bit
    damaged.write_bytes(content)

    found = values(open_bench(directory))

    # A batch's leader epoch stands outside its checksum: damage there costs nothing.
    assert found == [value(at) for at in range(len(found))]


def test_a_flipped_offset_is_found_after_a_cut_has_removed_a_segment(tmp_path) -> None:
    bench = written_log(tmp_path / "t-0")
    first, second = sorted(bench.directory.glob("*.log"))[:2]
    end_offset = int(second.stem) - 1
    bench.core.roles.become_follower(1, 1)
    bench.truncate(end_offset)
    directory = crashed(bench)
    assert last_segment(directory) == first
    content = bytearray(first.read_bytes())
    at = len(content) // end_offset * (end_offset - 1)  # all batches have one size
    content[at + 5] ^= 0x01  # the base offset's, which the checksum leaves out: 65,536 farther
    first.write_bytes(content)

    assert open_bench(directory).log.end_offset == end_offset - 1


def test_no_gap_is_wider_than_an_index_can_say(tmp_path) -> None:
    directory = crashed(written_log(tmp_path / "t-0"))
    (directory / GAPS_FILE).write_bytes(b"")
    last = last_segment(directory)
    content = bytearray(last.read_bytes())
    content[4] ^= 0x80  # of the first batch's base offset: 2^31 farther
    last.write_bytes(content)

    assert open_bench(directory).log.end_offset == int(last.stem)


def test_garbage_and_zeros_behind_the_tail_are_cut(tmp_path) -> None:
    for name, rubbish in (("zeros", bytes(500)), ("garbage", b"\xff" * 500)):
        directory = crashed(written_log(tmp_path / name))
        with last_segment(directory).open("ab") as file:
            file.write(rubbish)
        assert values(open_bench(directory)) == [value(at) for at in range(BATCHES)]


def test_what_lies_before_the_recovery_point_is_not_checked_again(tmp_path) -> None:
    directory = crashed(written_log(tmp_path / "t-0"))
    first = min(directory.glob("*.log"))
    content = bytearray(first.read_bytes())
    content[-1] ^= 1
    first.write_bytes(content)
    assert open_bench(directory, recovery_point=BATCHES).log.end_offset == BATCHES
    # Without a recovery point the damage is found, and nothing may stand behind a gap.
    again = open_bench(directory)
    assert 0 < again.log.end_offset < BATCHES
    assert [path.name for path in directory.glob("*.log")] == [first.name]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["missing", "empty", "odd", "zeros", "foreign"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_damaged_indexes_are_made_again(tmp_path, clean, damage, suffix) -> None:
    bench = written_log(tmp_path / "t-0")
    bench.close()
    sound = {path: path.read_bytes() for path in bench.directory.glob("*.*index")}
    for path in bench.directory.glob(f"*{suffix}"):
        match damage:
            case "missing":
                path.unlink()
            case "empty":
                path.write_bytes(b"")
            case "odd":
                path.write_bytes(path.read_bytes() + b"\1")
            case "zeros":
                path.write_bytes(bytes(len(path.read_bytes())))
            case "foreign":
                path.write_bytes(b"\xff" * 24)

    again = open_bench(bench.directory, clean=clean)

    assert values(again) == [value(at) for at in range(BATCHES)]
    for at in range(BATCHES):
        found = again.find_time(1000 + at, from_offset=0, end_offset=BATCHES)
        assert found == (at, 1000 + at)
    again.close()
    for path, content in sound.items():
        # What is made again may have an entry more or less at its end than what grew with the log.
        assert abs(len(path.read_bytes()) - len(content)) <= 12


@pytest.mark.parametrize("lie", ["positions", "offsets", "times", "cut"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_is_sound_and_wrong_misleads_nobody(tmp_path, suffix, lie) -> None:
    """Right size, rising, within the segment: only the log itself tells that an entry is not true."""
    bench = written_log(tmp_path / "t-0")
    bench.close()
    layout = struct.Struct(">II" if suffix == ".index" else ">qI")
    for path in bench.directory.glob(f"*{suffix}"):
        entries = list(layout.iter_unpack(path.read_bytes()))
        match lie:
            case "positions":
                entries = [(first, second + 1) for first, second in entries]
            case "offsets":
                entries = [(first + 1, second) for first, second in entries]
            case "times":
                entries = [(first - at, second) for at, (first, second) in enumerate(entries)]
            case "cut":
                entries = entries[:-1]
        path.write_bytes(b"".join(layout.pack(*entry) for entry in entries))

    again = open_bench(bench.directory, clean=True)

    assert values(again) == [value(at) for at in range(BATCHES)]
    for at in range(BATCHES):
        (record, *_) = iterate_records(again.log.read(at, 1, BATCHES, at_least_one=True))
        assert record.offset == at
        found = again.find_time(1000 + at, from_offset=0, end_offset=BATCHES)
        assert found == (at, 1000 + at)
    for segment, following in pairwise(again.log.segments):
        assert segment.max_timestamp == (1000 + following.base_offset - 1, following.base_offset - 1)
    again.close()


def test_a_clean_start_reads_only_the_tail(tmp_path) -> None:
    bench = written_log(tmp_path / "t-0")
    bench.close()
    before = {path: path.stat().st_mtime_ns for path in bench.directory.iterdir()}
    again = open_bench(bench.directory, clean=True)
    assert again.log.end_offset == BATCHES
    assert {path: path.stat().st_mtime_ns for path in bench.directory.iterdir()} == before
    assert values(again) == [value(at) for at in range(BATCHES)]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("snapshots", ["kept", "removed", "damaged"])
def test_producers_are_known_again(tmp_path, clean, snapshots) -> None:
    bench = written_log(tmp_path / "t-0")
    if clean:
        bench.close()
    else:
        crashed(bench)
    rows = bench.core.writes.producer_rows(BATCHES)
    for path in bench.directory.glob("*.snapshot"):
        if snapshots == "removed":
            path.unlink()
        elif snapshots == "damaged":
            path.write_bytes(path.read_bytes()[:-1] + b"\x7f")

    again = open_bench(bench.directory, clean=clean)

    assert again.core.writes.producer_rows(BATCHES) == rows
    for at in range(BATCHES - 5, BATCHES):
        batch = build_batch([(1000, b"k", b"x", ())], producer_id=5, producer_epoch=0, base_sequence=at)
        again.append(batch, at)
    assert [(token, r.error, r.base_offset) for token, r in again.answers] == [
        (at, ErrorCode.NONE, at) for at in range(BATCHES - 5, BATCHES)
    ]
    assert again.core.state.next_offset == BATCHES


def test_a_snapshot_from_beyond_the_end_speaks_of_lost_batches(tmp_path) -> None:
    bench = written_log(tmp_path / "t-0")
    bench.close()
    last_segment(bench.directory).write_bytes(b"")
    again = open_bench(bench.directory)
    end = again.log.end_offset
    assert end < BATCHES
    entry = again.core.state.producers.get(5)
    assert entry is not None
    assert entry.batches[-1].last_offset == end - 1


def test_segments_and_indexes_are_named_as_kafka_names_them(tmp_path) -> None:
    bench = written_log(tmp_path / "t-0")
    bench.close()
    bases = [segment.base_offset for segment in bench.log.segments]
    for base in bases:
        for suffix in ("log", "index", "timeindex"):
            assert (bench.directory / f"{base:020d}.{suffix}").exists()
    assert (bench.directory / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"


def test_checkpoints_read_what_they_wrote_and_nothing_else() -> None:
    offsets = {("a-topic", 0): 5, ("b", 12): 2**40}
    assert decode_offsets(encode_offsets(offsets)) == offsets
    assert encode_offsets({("a", 1): 2}) == b"0\n1\na 1 2\n"
    assert decode_epochs(encode_epochs([(0, 0), (3, 77)])) == [(0, 0), (3, 77)]
    for damaged in (None, b"", b"0\n", b"1\n0\n", b"0\n2\na 1 2\n", b"0\n1\na 1\n", b"0\n1\na x 2\n", b"\xff\xfe"):
        assert decode_offsets(damaged) == {}
        assert decode_epochs(damaged) == []
        assert decode_producers(damaged) is None
        assert decode_topic_id(damaged) is None


def test_a_copied_log_opens_elsewhere(tmp_path) -> None:
    bench = written_log(tmp_path / "t-0")
    bench.close()
    shutil.copytree(bench.directory, tmp_path / "elsewhere")
    assert values(open_bench(tmp_path / "elsewhere")) == [value(at) for at in range(BATCHES)]


def test_an_epoch_that_the_checksum_leaves_out_is_repaired_from_the_epochs_file() -> None:
    files = MemoryFileSystem()
    bench = Bench(files, TopicConfig.from_overrides({}))
    for epoch in (1, 4):
        bench.core.state.epochs.current = epoch
        bench.append(build_batch([(1, b"k", b"epoch %d" % epoch, ())]))
        bench.settle()
    after = files.crash()
    (segment,) = bench.log.segments
    second = read_header(segment.file.read_at(0, 61)).size
    log = after.open(segment.path())
    log.write_at(second + 12, [b"\x7f\xff\xff\xff"])
    log.sync()

    again = Bench(after, TopicConfig.from_overrides({}))

    assert again.core.state.epochs.starts == ((1, 0), (4, 1))
    assert again.core.state.leader_epoch == 4
    assert read_header(log.read_at(second, 61)).leader_epoch == 4
    after.remove(DIRECTORY / LEADER_EPOCH_FILE)
    assert Bench(after, TopicConfig.from_overrides({})).core.state.epochs.starts == ((1, 0), (4, 1)), "from the batches"
