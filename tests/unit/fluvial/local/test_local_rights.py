"""Who may look into the local platform's folders: its user, and nobody else."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluvial.local.lock import NODE_LOCK, FolderLock
from fluvial.local.rights import make_private


@pytest.fixture(autouse=True)
def _no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_what_is_made_is_its_users_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    make_private(folder, mark=NODE_LOCK)
    with FolderLock(folder / NODE_LOCK) as lock:
        assert lock.acquire()
    assert (mode(folder), mode(folder / NODE_LOCK)) == (0o700, 0o600)


def test_a_folder_of_an_earlier_version_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "old"
    folder.mkdir(0o755)
    (folder / NODE_LOCK).touch(0o644)
    make_private(folder, mark=NODE_LOCK)
    assert mode(folder) == 0o700


def test_a_folder_that_is_not_known_for_ours_stays_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir(0o755)
    make_private(folder, mark=NODE_LOCK)
    assert mode(folder) == 0o755
