"""A metadata log of the time before the quorum is taken up, wherever the process is cut off on the way."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from log_broker.core.raft.voters import ReplicaKey, Voter, VoterSet
from log_broker.records.record import build_batch
from log_broker.storage.files import OsFileSystem
from log_broker.storage.metadata_upgrade import upgrade
from log_broker.storage.quorum_store import QuorumStore

ALONE = VoterSet([Voter(key=ReplicaKey(0, "d"), host="h", port=1)])
VALUES = [b'{"a":1}', b'{"b":2}', b'{"c":3}']


class CutError(Exception):
    """The process ends."""


class CutFiles(OsFileSystem):
    """Files whose renames end the process after so many."""

    def __init__(self, renames: int) -> None:
        self._left = renames

    def rename(self, path: Path, to: Path) -> None:
        if not self._left:
            raise CutError
        self._left -= 1
        super().rename(path, to)


def old_log(directory: Path, *, torn: bool = False) -> None:
    directory.mkdir(parents=True)
    (directory / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    batches = [build_batch([(1, None, value, ())], base_offset=offset) for offset, value in enumerate(VALUES)]
    content = b"".join(batches)
    (directory / f"{0:020d}.log").write_bytes(content[:-5] if torn else content)


def joined(values: Iterator[bytes]) -> bytes:
    return b"|".join(values)


def content_of(directory: Path) -> bytes:
    recovered = QuorumStore(OsFileSystem(), directory).recover()
    assert recovered.snapshot is not None
    assert recovered.snapshot.voters == ALONE
    assert recovered.state.epoch == 1
    return recovered.snapshot.data


@pytest.mark.parametrize("torn", [False, True])
def test_what_the_records_come_to_is_a_snapshot(tmp_path: Path, torn: bool) -> None:
    directory = tmp_path / "m-0"
    old_log(directory, torn=torn)
    assert upgrade(OsFileSystem(), directory, ALONE, joined)
    assert content_of(directory) == b"|".join(VALUES[:-1] if torn else VALUES)
    assert not upgrade(OsFileSystem(), directory, ALONE, joined), "once is enough"
    assert [path.name for path in tmp_path.iterdir()] == ["m-0"]


@pytest.mark.parametrize("renames", [0, 1])
def test_a_process_that_ends_on_the_way_loses_nothing(tmp_path: Path, renames: int) -> None:
    directory = tmp_path / "m-0"
    old_log(directory)
    with pytest.raises(CutError):
        upgrade(CutFiles(renames), directory, ALONE, joined)
    assert upgrade(OsFileSystem(), directory, ALONE, joined)
    assert content_of(directory) == b"|".join(VALUES)
    assert [path.name for path in tmp_path.iterdir()] == ["m-0"]


def test_a_new_directory_and_a_quorums_own_are_left_alone(tmp_path: Path) -> None:
    assert not upgrade(OsFileSystem(), tmp_path / "m-0", ALONE, joined)
    store = QuorumStore(OsFileSystem(), tmp_path / "m-0")
    store.recover()
    store.close()
    assert not upgrade(OsFileSystem(), tmp_path / "m-0", ALONE, joined)
