"""
Takes up a metadata log of the time before the quorum: a plain partition, whose records are JSON objects.

What its records come to becomes the first snapshot of a quorum log, of which this node is the only voter: whoever has
the cluster's metadata must not be outvoted by nodes that have none. The old files stay until the new ones are whole.

    <topic>-0        the old log, then the new one
    <topic>-0.old    the old log while the new one takes its place
    <topic>-0.new    the new one until it is whole
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from log_broker.core.raft.effects import QuorumState
from log_broker.core.raft.log import OffsetAndEpoch, Snapshot
from log_broker.core.raft.voters import VoterSet
from log_broker.records.batch import batches_in, crc_is_valid
from log_broker.records.record import iterate_records
from log_broker.storage.files import FileSystem
from log_broker.storage.quorum_store import QUORUM_STATE_FILE, QuorumStore

_PARTITION_FILE = "partition.metadata"
_FIRST_EPOCH = 1


def upgrade(files: FileSystem, directory: Path, voters: VoterSet, image_of: Callable[[Iterator[bytes]], bytes]) -> bool:
    """
    Put a quorum log in place of an old metadata log, if there is one; say whether there was. Raises OSError.

    `image_of` makes the content of a snapshot of the values of all records.
    """
    old = directory.with_name(f"{directory.name}.old")
    new = directory.with_name(f"{directory.name}.new")
    names = files.names(directory)
    if not names and files.names(old):
        _take_place(files, new, directory)  # it was cut off between the two renames
    elif _PARTITION_FILE in names and QUORUM_STATE_FILE not in names:
        files.remove_tree(new)
        values = _values(files, directory)
        _write(files, new, Snapshot(id=OffsetAndEpoch(1, _FIRST_EPOCH), voters=voters, data=image_of(values)))
        files.rename(directory, old)
        files.sync_directory(directory.parent)
        _take_place(files, new, directory)
    elif files.names(old):
        files.remove_tree(old)
        return False
    else:
        return False
    files.remove_tree(old)
    return True


def _take_place(files: FileSystem, new: Path, directory: Path) -> None:
    files.rename(new, directory)
    files.sync_directory(directory.parent)


def _write(files: FileSystem, directory: Path, snapshot: Snapshot) -> None:
    store = QuorumStore(files, directory)
    store.recover()
    store.save_state(QuorumState(epoch=_FIRST_EPOCH))
    store.install_snapshot(snapshot)
    store.close()


def _values(files: FileSystem, directory: Path) -> Iterator[bytes]:
    """Yield the values of the old log's records up to its first torn batch."""
    for name in sorted(name for name in files.names(directory) if name.endswith(".log")):
        content = files.read(directory / name) or b""
        for position, header in batches_in(content):
            batch = content[position : position + header.size]
            if not crc_is_valid(batch, header.crc):
                return
            yield from (bytes(record.value) for record in iterate_records(batch) if record.value is not None)
