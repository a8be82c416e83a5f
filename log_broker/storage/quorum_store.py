"""
What a replica of the metadata quorum keeps on its disk: promises, log and snapshots, in Kafka's files and names.

    quorum-state                            JSON: epoch, leader, vote; replaced as a whole
    <base offset>.log                       entries, each a v2 batch of one record: see `core.raft_codec`
    <end offset>-<epoch>.checkpoint         a snapshot: crc, length of the voters record, voters record, content

Every method returns when its work is on the disk, and is called in the order of the effects it carries out. A crash
in the middle leaves at most a torn tail behind what was reported, which recovery cuts off.
"""

import json
import struct
from collections.abc import Sequence
from pathlib import Path

from crc32c import crc32c

from log_broker.core.raft.codec import decode_entries, encode_entry
from log_broker.core.raft.effects import QuorumState
from log_broker.core.raft.log import LOG_BEGIN, Entry, OffsetAndEpoch, Snapshot
from log_broker.core.raft.replica import EPOCH_MAX, Recovered
from log_broker.core.raft.voters import ReplicaKey, VoterSet
from log_broker.errors import BrokerError
from log_broker.storage.data_directory import DataDirectoryError
from log_broker.storage.files import File, FileSystem

QUORUM_STATE_FILE = "quorum-state"
_LOG_SUFFIX = ".log"
_SNAPSHOT_SUFFIX = ".checkpoint"
_STATE_VERSION = 1
_DIGITS_MAX = 20
_SNAPSHOT_HEADER = struct.Struct(">II")  # crc of what follows the crc, length of the voters record


class DamagedQuorumStateError(DataDirectoryError):
    """
    What this replica has promised cannot be read: it must not take part as if it had promised nothing.

    The message is one line: which file, what is wrong with it, and where it says how to repair that.
    """

    def __init__(self, file: Path, reason: str) -> None:
        super().__init__(file.parent, f'{file.name} {reason}; see "A damaged file of the metadata" in docs/cluster.md')


class _Segment:
    """One log file; `positions` says where each entry begins."""

    __slots__ = ("base_offset", "file", "path", "positions", "size")

    def __init__(self, base_offset: int, path: Path, file: File) -> None:
        self.base_offset = base_offset
        self.path = path
        self.file = file
        self.positions: list[int] = []
        self.size = 0

    @property
    def end_offset(self) -> int:
        return self.base_offset + len(self.positions)


class QuorumStore:
    """The files of one replica, under one directory."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self._segments: list[_Segment] = []
        self._snapshots: list[OffsetAndEpoch] = []

    def recover(self) -> Recovered:
        """
        Read back what is here, cut a torn tail off, and be ready to append.

        What it returns is on the disk: a process that was killed may have left entries and a vote that are not.
        Raises DamagedQuorumStateError and changes nothing where more is gone than a crash can have taken.
        """
        self._files.make_directory(self._directory)
        snapshot, damaged = self._newest_snapshot()
        state = self._read_state()
        start = snapshot.id if snapshot is not None else LOG_BEGIN
        try:
            base_offset, entries = self._read_log(start.offset)
        except DamagedQuorumStateError:
            self.close()
            raise
        behind = start.offset - base_offset
        if not self._segments and snapshot is None and state.epoch > 0 and not damaged:
            raise DamagedQuorumStateError(self._directory / QUORUM_STATE_FILE, "is there, and the log beside it is not")
        if (self._segments and behind < 0) or (damaged and not self._segments):
            path = damaged[0] if damaged else self._segments[0].path
            self.close()
            reason = (
                "is damaged, and the log does not go back to where it began"
                if damaged
                else "begins behind what the snapshots reach"
            )
            raise DamagedQuorumStateError(path, reason)
        for path in damaged:
            self._files.remove(path)
        if not self._segments or not _reaches(behind, entries, start):
            # A snapshot was installed over a log that ends before it or goes another way, and that is still here.
            self._clear_log(start.offset)
            behind, entries = 0, []
        for segment in self._segments:
            segment.file.sync()
        self._files.sync_directory(self._directory)
        self._files.sync_directory(self._directory.parent)
        return Recovered(state=state, snapshot=snapshot, log_start=start, entries=tuple(entries[behind:]))

    @property
    def end_offset(self) -> int:
        """Behind the last entry that is on the disk."""
        return self._segments[-1].end_offset

    def close(self) -> None:
        """Let go of the files."""
        for segment in self._segments:
            segment.file.close()
        self._segments.clear()

    def save_state(self, state: QuorumState) -> None:
        content = {
            "leaderId": state.leader_id,
            "leaderEpoch": state.epoch,
            "votedId": state.voted.node_id if state.voted is not None else -1,
            "votedDirectoryId": state.voted.directory_id if state.voted is not None else "",
            "data_version": _STATE_VERSION,
        }
        self._files.replace(self._directory / QUORUM_STATE_FILE, json.dumps(content).encode())

    def append(self, base_offset: int, entries: Sequence[Entry]) -> None:
        """Write entries and sync them."""
        segment = self._segments[-1]
        assert base_offset == segment.end_offset, f"a gap from {segment.end_offset} to {base_offset}"
        buffers = []
        size = segment.size
        positions = []
        for offset, entry in enumerate(entries, base_offset):
            batch = encode_entry(offset, entry)
            buffers.append(batch)
            positions.append(size)
            size += len(batch)
        segment.file.write_at(segment.size, buffers)
        segment.file.sync()
        segment.positions += positions
        segment.size = size

    def truncate(self, end_offset: int) -> None:
        """
        Drop the entries from `end_offset` on, for good before anything is written in their place.

        Else a torn write could leave new entries followed by old ones: a log that no leader ever had.
        """
        while len(self._segments) > 1 and self._segments[-1].base_offset >= end_offset:
            self._remove(self._segments.pop())
        self._files.sync_directory(self._directory)
        segment = self._segments[-1]
        at = end_offset - segment.base_offset
        if at < len(segment.positions):
            segment.size = segment.positions[at]
            del segment.positions[at:]
            segment.file.truncate(segment.size)
            segment.file.sync()

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a snapshot of the state machine here; what follows goes to a new log file."""
        self._write_snapshot(snapshot)
        if self._segments[-1].positions:
            self._roll(self._segments[-1].end_offset)

    def install_snapshot(self, snapshot: Snapshot) -> None:
        """Replace the whole log by a snapshot from elsewhere."""
        self._write_snapshot(snapshot)
        self._clear_log(snapshot.id.offset)

    def drop_prefix(self, start_offset: int) -> None:
        """Remove log files that end before `start_offset`, and all snapshots but the newest."""
        while len(self._segments) > 1 and self._segments[1].base_offset <= start_offset:
            self._remove(self._segments.pop(0))
        while len(self._snapshots) > 1:
            self._files.remove(self._snapshot_path(self._snapshots.pop(0)))

    def _read_state(self) -> QuorumState:
        path = self._directory / QUORUM_STATE_FILE
        content = self._files.read(path)
        if content is None:
            return QuorumState()
        try:
            fields = json.loads(content)
            version, epoch, leader_id = fields["data_version"], fields["leaderEpoch"], fields["leaderId"]
            voted = ReplicaKey(fields["votedId"], fields["votedDirectoryId"]) if fields["votedId"] >= 0 else None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DamagedQuorumStateError(path, f"cannot be read ({type(error).__name__}: {error})") from error
        if version != _STATE_VERSION:
            raise DamagedQuorumStateError(path, f"has version {version!r}, and this release knows {_STATE_VERSION}")
        if type(epoch) is not int or not 0 <= epoch <= EPOCH_MAX:
            raise DamagedQuorumStateError(path, f"has the leaderEpoch {epoch!r}, which no quorum can be in")
        if type(leader_id) is not int or (voted is not None and list(map(type, voted)) != [int, str]):
            raise DamagedQuorumStateError(path, "does not say by numbers who led or whom this node voted for")
        return QuorumState(epoch=epoch, leader_id=leader_id, voted=voted)

    def _newest_snapshot(self) -> tuple[Snapshot | None, list[Path]]:
        """Read the newest snapshot that is whole; name the damaged ones that are newer."""
        for name in self._files.names(self._directory):
            if name.endswith(_SNAPSHOT_SUFFIX):
                end, _, epoch = name.removesuffix(_SNAPSHOT_SUFFIX).partition("-")
                is_named = _is_number(end) and _is_number(epoch)
                snapshot_id = OffsetAndEpoch(int(end), int(epoch)) if is_named else OffsetAndEpoch(0, 0)
                if name != self._snapshot_path(snapshot_id).name:
                    raise DamagedQuorumStateError(self._directory / name, "has not the name of a snapshot")
                self._snapshots.append(snapshot_id)
        self._snapshots.sort()
        damaged: list[Path] = []
        while self._snapshots:
            path = self._snapshot_path(self._snapshots[-1])
            snapshot = _decode_snapshot(self._snapshots[-1], self._files.read(path))
            if snapshot is not None:
                return snapshot, damaged
            damaged.append(path)
            self._snapshots.pop()
        return None, damaged

    def _read_log(self, snapshot_end: int) -> tuple[int, list[Entry]]:
        """
        Return the base offset and the entries of the log files.

        The last file is cut behind its last whole entry; one before it was whole when the next was begun. A crash may
        leave files of which some were to be removed and those between are gone: what a snapshot holds needs none of
        those in front of a gap, and else those behind it are the ones that were being removed.
        """
        names = sorted(name for name in self._files.names(self._directory) if name.endswith(_LOG_SUFFIX))
        entries: list[Entry] = []
        surplus = False
        for name in names:
            path = self._directory / name
            if not _is_number(name.removesuffix(_LOG_SUFFIX)):
                raise DamagedQuorumStateError(path, "has not the name of a log file")
            segment = _Segment(int(name.removesuffix(_LOG_SUFFIX)), path, self._files.open(path))
            before = self._segments[-1] if self._segments else None
            if before is not None and before.end_offset != segment.base_offset:
                if before.size < before.file.size():
                    segment.file.close()
                    raise DamagedQuorumStateError(before.path, f"is damaged behind offset {before.end_offset}")
                surplus = surplus or segment.base_offset > snapshot_end
                if not surplus:
                    self._remove_all()
                    entries = []
            if surplus:
                self._remove(segment)
                continue
            self._segments.append(segment)
            entries += _read_entries(segment, entries[-1].epoch if entries else 0)
        if self._segments and self._segments[-1].size < self._segments[-1].file.size():
            segment = self._segments[-1]
            segment.file.truncate(segment.size)
            segment.file.sync()
        return (self._segments[0].base_offset if self._segments else 0), entries

    def _clear_log(self, base_offset: int) -> None:
        self._remove_all()
        self._roll(base_offset)

    def _remove_all(self) -> None:
        for segment in self._segments:
            self._remove(segment)
        self._segments.clear()

    def _roll(self, base_offset: int) -> None:
        path = self._directory / f"{base_offset:020d}{_LOG_SUFFIX}"
        segment = _Segment(base_offset, path, self._files.open(path))
        segment.file.truncate(0)
        self._segments.append(segment)
        self._files.sync_directory(self._directory)

    def _remove(self, segment: _Segment) -> None:
        segment.file.close()
        self._files.remove(segment.path)

    def _write_snapshot(self, snapshot: Snapshot) -> None:
        voters = snapshot.voters.encode()
        body = struct.pack(">I", len(voters)) + voters + snapshot.data
        self._files.replace(self._snapshot_path(snapshot.id), struct.pack(">I", crc32c(body)) + body)
        self._snapshots.append(snapshot.id)

    def _snapshot_path(self, snapshot_id: OffsetAndEpoch) -> Path:
        return self._directory / f"{snapshot_id.offset:020d}-{snapshot_id.epoch:010d}{_SNAPSHOT_SUFFIX}"


def check_epochs(directory: Path, found: Recovered, epoch_max: int) -> None:
    """Raise DamagedQuorumStateError for an epoch that cannot have come yet, which the other replicas would refuse."""
    in_log = found.entries[-1].epoch if found.entries else found.log_start.epoch
    for name, epoch in ((QUORUM_STATE_FILE, found.state.epoch), ("the log", in_log)):
        if epoch > epoch_max:
            reason = f"has the leaderEpoch {epoch}, and by this machine's clock {epoch_max} is the highest there can be"
            raise DamagedQuorumStateError(directory / name, reason)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


def _read_entries(segment: _Segment, epoch: int) -> list[Entry]:
    """Read entries until one is torn, out of its place, or older than the one before it; note where each begins."""
    entries = []
    content = segment.file.read_at(0, segment.file.size())
    try:
        for position, size, entry in decode_entries(content, segment.end_offset, epoch):
            entries.append(entry)
            segment.positions.append(position)
            segment.size = position + size
    except (ValueError, KeyError, struct.error, RuntimeError, BrokerError) as error:
        reason = f"has a whole entry at offset {segment.end_offset} that cannot be read ({error!r})"
        raise DamagedQuorumStateError(segment.path, reason) from error
    return entries


def _reaches(behind: int, entries: Sequence[Entry], start: OffsetAndEpoch) -> bool:
    """Whether a log has the entry just before `start`, or begins there; `behind` entries of it lie before `start`."""
    if behind == 0:
        return True
    return 0 < behind <= len(entries) and entries[behind - 1].epoch == start.epoch


def _decode_snapshot(snapshot_id: OffsetAndEpoch, content: bytes | None) -> Snapshot | None:
    if content is None or len(content) < _SNAPSHOT_HEADER.size:
        return None
    crc, voters_bytes = _SNAPSHOT_HEADER.unpack_from(content)
    if crc32c(content[4:]) != crc:
        return None
    voters_end = _SNAPSHOT_HEADER.size + voters_bytes
    try:
        voters = VoterSet.decode(content[_SNAPSHOT_HEADER.size : voters_end])
    except ValueError:
        return None
    return Snapshot(id=snapshot_id, voters=voters, data=content[voters_end:])
