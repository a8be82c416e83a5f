"""Who may read what a node keeps on its disk: the user it runs as, and nobody else."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_client import running

from log_broker.errors import ErrorCode
from log_broker.records import build_batch
from log_broker.storage.data_directory import DataDirectory
from log_broker.storage.files import OsFileSystem


@pytest.fixture(autouse=True)
def _no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(directory: Path) -> list[str]:
    paths = [directory, *directory.rglob("*")]
    return [
        f"{path.relative_to(directory.parent)} {path.stat().st_mode:o}" for path in paths if path.stat().st_mode & 0o077
    ]


async def fill(data_dir: Path) -> None:
    """Have a node write all kinds of files, and stop it."""
    async with running(data_dir) as (node, client):
        await client.create("t", **{"segment.bytes": "300", "retention.ms": "-1"})
        for value in range(5):
            batch = bytes(
                build_batch([(1, b"k", b"%d" % value, ())], producer_id=7, base_sequence=value, producer_epoch=0)
            )
            assert (await client.produce("t", batch)).error_code == ErrorCode.NONE
        node.logs.checkpoint()


async def fill_again(data_dir: Path) -> None:
    async with running(data_dir) as (_, client):
        assert (await client.produce("t", bytes(build_batch([(1, b"k", b"v", ())])))).error_code == ErrorCode.NONE


async def test_what_a_node_writes_is_its_users_alone(tmp_path: Path) -> None:
    await fill(tmp_path / "new" / "data")
    kinds = {path.suffix or path.name for path in (tmp_path / "new" / "data").rglob("*")}
    assert {".log", ".index", ".snapshot", ".properties", ".metadata", "quorum-state"} <= kinds
    assert open_to_others(tmp_path / "new") == []


async def test_a_data_directory_of_an_earlier_version_is_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data_dir = tmp_path / "data"
    await fill(data_dir)
    for path in (data_dir, *data_dir.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with caplog.at_level(logging.INFO):
        await fill_again(data_dir)
    assert data_dir.stat().st_mode & 0o777 == 0o700
    assert "mode 755 is now 700" in caplog.text


def test_a_folder_that_no_broker_has_used_keeps_its_mode(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir(0o750)
    claim = DataDirectory(folder)
    claim.acquire()
    claim.release()
    assert folder.stat().st_mode & 0o777 == 0o750


def test_a_stricter_umask_holds(tmp_path: Path) -> None:
    os.umask(0o277)
    OsFileSystem().replace(tmp_path / "file", b"", sync=False)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o400
