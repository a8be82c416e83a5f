"""The files of the metadata quorum: what was reported is there after a crash, and what was torn is not."""

from pathlib import Path

import pytest

from log_broker.core.raft.effects import QuorumState
from log_broker.core.raft.log import Entry, EntryKind, OffsetAndEpoch, Snapshot
from log_broker.core.raft.voters import ReplicaKey, Voter, VoterSet
from log_broker.storage.files import OsFileSystem
from log_broker.storage.memory_files import MemoryFileSystem, ProcessKilled
from log_broker.storage.quorum_store import DamagedQuorumStateError, QuorumStore

HERE = Path("quorum")
VOTERS = VoterSet([Voter(key=ReplicaKey(1, "d"), host="h", port=1)])
ENTRIES = (
    Entry(1, EntryKind.LEADER_CHANGE, b"{}"),
    Entry(1, EntryKind.DATA, b"a" * 50),
    Entry(1, EntryKind.VOTERS, VOTERS.encode()),
    Entry(2, EntryKind.DATA, b""),
)


def snapshot(offset: int, epoch: int, content: bytes = b"all") -> Snapshot:
    return Snapshot(id=OffsetAndEpoch(offset, epoch), voters=VOTERS, data=content)


def opened(files: MemoryFileSystem) -> QuorumStore:
    store = QuorumStore(files, HERE)
    store.recover()
    return store


def test_everything_is_read_back_from_real_files(tmp_path: Path) -> None:
    store = QuorumStore(OsFileSystem(), tmp_path / "quorum")
    store.recover()
    state = QuorumState(epoch=2, leader_id=3, voted=ReplicaKey(3, "x"))
    store.save_state(state)
    store.append(0, ENTRIES)
    store.save_snapshot(snapshot(2, 1))
    found = QuorumStore(OsFileSystem(), tmp_path / "quorum").recover()
    assert (found.state, found.snapshot, found.log_start) == (state, snapshot(2, 1), (2, 1))
    assert found.entries == ENTRIES[2:]


def test_an_empty_directory_has_promised_nothing() -> None:
    found = QuorumStore(MemoryFileSystem(), HERE).recover()
    assert (found.state, found.snapshot, found.log_start, found.entries) == (QuorumState(), None, (0, 0), ())


def test_what_a_killed_process_had_not_synced_is_on_the_disk_before_it_is_counted_on() -> None:
    """A voter tells how far its log goes, and for whom it has voted, by what it finds at its start."""
    files = MemoryFileSystem()
    data_dir = Path("data")
    for directory in (data_dir, data_dir / "quorum"):
        files.make_directory(directory)
    store = QuorumStore(files, data_dir / "quorum")
    store.recover()
    state = QuorumState(epoch=2, voted=ReplicaKey(3, "x"))
    for act in (lambda: store.append(0, ENTRIES), lambda: store.save_state(state)):
        files.syncs_left = 0
        with pytest.raises(ProcessKilled):
            act()
        files.syncs_left = None
    found = QuorumStore(files, data_dir / "quorum").recover()
    assert (found.state, found.entries) == (state, ENTRIES)
    after = QuorumStore(files.crash(), data_dir / "quorum").recover()
    assert (after.state, after.entries) == (found.state, found.entries)


@pytest.mark.parametrize("torn", range(0, 180, 7))
def test_a_torn_append_is_cut_off(torn: int) -> None:
    files = MemoryFileSystem()
    store = opened(files)
    store.append(0, ENTRIES[:2])
    files.failing_syncs = 1
    with pytest.raises(OSError, match="Input/output"):
        store.append(2, ENTRIES[2:])
    after = files.crash(lambda unsynced: unsynced[:torn])
    found = QuorumStore(after, HERE).recover()
    assert found.entries[:2] == ENTRIES[:2]
    assert found.entries == ENTRIES[: len(found.entries)]
    again = opened(after)
    again.append(again.end_offset, ENTRIES[-1:])
    assert QuorumStore(after.crash(), HERE).recover().entries == (*found.entries, ENTRIES[-1])


def test_an_entry_that_is_garbled_anywhere_is_cut_off_with_all_behind_it() -> None:
    """Also in its base offset and its epoch, which the checksum of a batch does not cover."""
    files = MemoryFileSystem()
    store = opened(files)
    store.append(0, ENTRIES[:1])
    files.failing_syncs = 1
    with pytest.raises(OSError, match="Input/output"):
        store.append(1, ENTRIES[1:])
    for position in range(61 + len(ENTRIES[1].data)):
        garbled = files.crash(
            lambda unsynced, at=position: unsynced[:at] + bytes([unsynced[at] ^ 0x81]) + unsynced[at + 1 :]  # type: ignore[misc]
        )
        assert QuorumStore(garbled, HERE).recover().entries == ENTRIES[:1], f"byte {position}"


@pytest.mark.parametrize("end", range(5))
def test_a_truncation_is_durable_at_once(end: int) -> None:
    files = MemoryFileSystem()
    store = opened(files)
    store.append(0, ENTRIES)
    store.truncate(end)
    assert QuorumStore(files.crash(), HERE).recover().entries == ENTRIES[:end]


def test_a_truncation_goes_through_several_files() -> None:
    files = MemoryFileSystem()
    store = opened(files)
    store.append(0, ENTRIES[:2])
    store.save_snapshot(snapshot(1, 1))
    store.append(2, ENTRIES[2:])
    store.truncate(1)
    assert store.end_offset == 1
    store.append(1, ENTRIES[3:])
    assert QuorumStore(files.crash(), HERE).recover().entries == ENTRIES[3:]


def test_a_snapshot_from_elsewhere_replaces_the_log() -> None:
    files = MemoryFileSystem()
    store = opened(files)
    store.append(0, ENTRIES)
    store.install_snapshot(snapshot(9, 5))
    store.append(9, (Entry(5, EntryKind.DATA, b"next"),))
    found = QuorumStore(files.crash(), HERE).recover()
    assert (found.snapshot, found.log_start) == (snapshot(9, 5), (9, 5))
    assert found.entries == (Entry(5, EntryKind.DATA, b"next"),)


@pytest.mark.parametrize(("offset", "epoch"), [(9, 5), (2, 9)])
def test_a_log_that_a_snapshot_contradicts_is_cleared(offset: int, epoch: int) -> None:
    """As after a crash between the two halves of an installation."""
    files = MemoryFileSystem()
    store = opened(files)
    store.append(0, ENTRIES)
    store._write_snapshot(snapshot(offset, epoch))
    found = QuorumStore(files.crash(), HERE).recover()
    assert (found.log_start, found.entries) == ((offset, epoch), ())


def test_the_prefix_and_old_snapshots_are_dropped() -> None:
    files = MemoryFileSystem()
    store = opened(files)
    store.append(0, ENTRIES[:2])
    store.save_snapshot(snapshot(1, 1))
    store.append(2, ENTRIES[2:])
    store.save_snapshot(snapshot(3, 1))
    store.drop_prefix(2)
    assert files.names(HERE) == [
        "00000000000000000002.log",
        "00000000000000000003-0000000001.checkpoint",
        "00000000000000000004.log",
    ]
    assert QuorumStore(files, HERE).recover().entries == ENTRIES[3:]


def test_a_damaged_snapshot_is_passed_over() -> None:
    files = MemoryFileSystem()
    store = opened(files)
    store.append(0, ENTRIES)
    store.save_snapshot(snapshot(2, 1))
    files.replace(HERE / "00000000000000000003-0000000001.checkpoint", b"\0" * 20)
    assert QuorumStore(files, HERE).recover().snapshot == snapshot(2, 1)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"votedId": "x"}'])
def test_damaged_promises_are_not_taken_for_none(content: bytes) -> None:
    files = MemoryFileSystem()
    files.replace(HERE / "quorum-state", content)
    with pytest.raises(DamagedQuorumStateError):
        QuorumStore(files, HERE).recover()
