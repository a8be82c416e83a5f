"""The threads that wait for disks: those of Python, and the compiled ones where there are any."""

import asyncio
import errno
import os
import random
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from log_broker.records.batch import Buffer
from log_broker.server.process import sync_pool
from log_broker.server.process.sync_pool import SyncPool
from log_broker.storage.append_job import AppendJob
from log_broker.storage.files import OsFile, OsFileSystem

Told = asyncio.Future[BaseException | None]


@pytest.fixture(autouse=True, params=["compiled", "Python"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "Python":
        monkeypatch.setattr(sync_pool, "compiled", None)
    elif sync_pool.compiled is None:
        pytest.skip("nothing is compiled here")
    return str(request.param)


def append(file: OsFile, *buffers: Buffer, position: int = 0, synced: Sequence[OsFile] = ()) -> AppendJob:
    segment: Any = SimpleNamespace(files=SimpleNamespace(log=file), size=position)
    return AppendJob(
        OsFileSystem(),
        segment=segment if buffers else None,
        batches=(),
        buffers=buffers,
        sync_files=synced,
        directories=(),
        sync=bool(synced),
    )


def told(pool: SyncPool, job: AppendJob) -> Told:
    answer: Told = asyncio.get_running_loop().create_future()
    pool.submit(job, answer.set_result)
    return answer


class _Write:
    """Stands for what a write holds: the bytes of requests that are answered when it is done."""

    def run(self) -> None: ...


async def _submitted(pool: SyncPool) -> "weakref.ref[_Write]":
    """Have a write done; return what tells whether anyone holds it still."""
    write, done = _Write(), asyncio.get_running_loop().create_future()
    pool.submit(write.run, done.set_result)
    assert await done is None
    return weakref.ref(write)


def test_a_thread_that_waits_keeps_nothing_of_what_it_has_written() -> None:
    async def run() -> None:
        pool = SyncPool(asyncio.get_running_loop())
        try:
            held = await _submitted(pool)
            # The thread has said that it is done before it waits for more, so it is let come to that.
            while held() is not None:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.001)
        finally:
            pool.close()

    asyncio.run(asyncio.wait_for(run(), 10))


def test_what_goes_wrong_is_told_and_the_thread_goes_on() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        pool = SyncPool(loop, threads=1)

        def fail() -> None:
            raise OSError("the disk is gone")

        try:
            told: asyncio.Future[BaseException | None] = loop.create_future()
            pool.submit(fail, told.set_result)
            assert str(await told) == "the disk is gone"
            await _submitted(pool)
        finally:
            pool.close()

    asyncio.run(run())


async def test_appends_are_in_their_file_when_they_are_done(tmp_path: Path) -> None:
    """Of no bytes and of many, in more buffers than one call of the system takes, and of each kind of buffer."""
    file, expected, rng = OsFile(tmp_path / "log"), bytearray(), random.Random(5)
    pool = SyncPool(asyncio.get_running_loop(), threads=3)
    answers = []
    for number in range(400):
        count = rng.choice((0, 1, 3, 1030 if number % 40 == 0 else 2))
        buffers: list[Buffer] = [rng.randbytes(rng.choice((0, 1, 70, 5000))) for _ in range(count)]
        if buffers:
            buffers[-1] = rng.choice((bytes, bytearray, memoryview))(buffers[-1])
        answers.append(told(pool, append(file, *buffers, position=len(expected), synced=(file,) * (number % 3))))
        expected += b"".join(buffers)
    assert set(await asyncio.gather(*answers)) == {None}
    assert file.read_at(0, len(expected) + 1) == expected
    pool.close()
    file.close()


def device(tmp_path: Path) -> AppendJob:
    return append(OsFile(Path("/dev/full")), b"x")


def pipe(tmp_path: Path) -> AppendJob:
    """What cannot be synced, behind what can."""
    reading, writing = os.pipe()
    os.close(reading)
    file, unsyncable = OsFile(tmp_path / "log"), OsFile(tmp_path / "other")
    os.dup2(writing, unsyncable.descriptor)
    os.close(writing)
    return append(file, b"x", synced=(file, unsyncable, file))


def closed(tmp_path: Path) -> AppendJob:
    file = OsFile(tmp_path / "log")
    os.close(file.descriptor)
    return append(file, b"x")


@pytest.mark.parametrize(("job", "number"), [(device, errno.ENOSPC), (pipe, errno.EINVAL), (closed, errno.EBADF)])
async def test_an_error_is_the_systems(job: Callable[[Path], AppendJob], number: int, tmp_path: Path) -> None:
    pool = SyncPool(asyncio.get_running_loop(), threads=1)
    error = await told(pool, job(tmp_path))
    assert isinstance(error, OSError)
    assert (error.errno, error.strerror) == (number, os.strerror(number))
    file = OsFile(tmp_path / "next")
    assert await told(pool, append(file, b"next")) is None
    pool.close()
    file.close()


PARTS = [random.Random(at).randbytes(300) for at in range(5)]
PROCESS = """
import asyncio, os, resource, sys
from pathlib import Path
from log_broker.server.process import sync_pool
from log_broker.storage.files import OsFile
from test_server_sync_pool import PARTS, append, told

async def main():
    if sys.argv[1] == "Python":
        sync_pool.compiled = None
    file = OsFile(Path(sys.argv[2]))
    pool = sync_pool.SyncPool(asyncio.get_running_loop())
    job = append(file, *PARTS, synced=(file,))
    BODY

asyncio.run(main())
"""
LIMITED = """
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    print((await told(pool, job)).errno)
    pool.close()
"""
WHOLE = """
    print(await told(pool, job))
    pool.close()
"""
FORKED = """
    assert await told(pool, job) is None
    if os.fork() == 0:
        pool._disk = None
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
    pool.close()
"""
BURST = """
    def count():
        return len(os.listdir("/proc/self/task"))

    of_four, before = sync_pool.SyncPool(asyncio.get_running_loop(), threads=4), count()
    assert await told(of_four, job) is None
    after_one = count()
    jobs = [append(file, bytes(16 << 20), position=at << 24, synced=(file,)) for at in range(6)]
    answers = [told(of_four, job) for job in jobs]
    print(after_one - before, count() - before, set(await asyncio.gather(*answers)))
    of_four.close()
    pool.close()
"""
# Takes at most seven bytes at a time, as a system may.
SEVEN = """
#define _GNU_SOURCE
#include <sys/uio.h>
#include <unistd.h>
ssize_t pwritev(int file, const struct iovec *part, int count, off_t at)
{
    while (count > 1 && part->iov_len == 0)
        part++, count--;
    return pwrite(file, part->iov_base, part->iov_len < 7 ? part->iov_len : 7, at);
}
ssize_t pwritev64(int file, const struct iovec *part, int count, off_t at) { return pwritev(file, part, count, at); }
"""


def run_in_a_process(body: str, threads: str, folder: Path, **more: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROCESS.replace("    BODY", body), threads, str(folder / "log")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]), **more},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_write_that_the_system_cuts_short_is_gone_on_with(threads: str, tmp_path: Path) -> None:
    """As on a disk that is nearly full: the rest is tried, and the error says why there is none."""
    assert run_in_a_process(LIMITED, threads, tmp_path) == str(errno.EFBIG)
    assert (tmp_path / "log").read_bytes() == b"".join(PARTS)[:1000]


def test_a_write_that_the_system_takes_in_pieces_is_whole(threads: str, tmp_path: Path) -> None:
    (tmp_path / "seven.c").write_text(SEVEN)
    library = tmp_path / "seven.so"
    try:
        command = ["cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "seven.c")]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no C compiler")
    assert run_in_a_process(WHOLE, threads, tmp_path, LD_PRELOAD=str(library)) == "None"
    assert (tmp_path / "log").read_bytes() == b"".join(PARTS)


def test_a_fork_of_the_process_lets_go_of_threads_that_it_does_not_have(threads: str, tmp_path: Path) -> None:
    assert run_in_a_process(FORKED, threads, tmp_path) == "7"


def test_as_many_threads_start_as_have_work_at_once(threads: str, tmp_path: Path) -> None:
    """Also where one waits that has been woken, and does not run yet. In a process where nobody else starts threads."""
    assert run_in_a_process(BURST, threads, tmp_path) == "1 4 {None}"


async def test_what_was_handed_in_before_the_end_is_done(tmp_path: Path) -> None:
    pool = SyncPool(asyncio.get_running_loop(), threads=2)
    file = OsFile(tmp_path / "log")
    answers = [told(pool, append(file, b"%02d" % at, position=2 * at, synced=(file,))) for at in range(50)]
    pool.close()
    assert file.read_at(0, 200) == b"".join(b"%02d" % at for at in range(50))
    assert set(await asyncio.wait_for(asyncio.gather(*answers), 10)) == {None}
    file.close()


async def test_bytes_that_are_written_are_let_go_of(tmp_path: Path) -> None:
    pool = SyncPool(asyncio.get_running_loop())
    file, written = OsFile(tmp_path / "log"), bytearray(b"x" * 100)
    assert await told(pool, append(file, written, synced=(file,))) is None
    while True:  # Python's thread lets go after it has said that it is done
        try:
            written.append(1)  # nobody has them pinned
            break
        except BufferError:
            await asyncio.sleep(0.001)
    pool.close()
    file.close()


async def test_an_answer_that_cannot_be_given_keeps_no_other_from_its_own(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    faults: list[Any] = []
    loop.set_exception_handler(lambda _, context: faults.append(context["exception"]))
    pool = SyncPool(loop, threads=1)
    file = OsFile(tmp_path / "log")

    def refuses(error: BaseException | None) -> None:
        raise ValueError("nobody is there")

    pool.submit(append(file, b"a"), refuses)
    answer = told(pool, append(file, b"b", position=1))
    assert await asyncio.wait_for(answer, 10) is None
    assert [str(fault) for fault in faults] == ["nobody is there"]
    pool.close()
    file.close()


async def test_files_that_a_test_watches_are_written_by_their_own_methods(tmp_path: Path) -> None:
    class Watched(OsFile):
        __slots__ = ("synced",)

        def sync(self) -> None:
            self.synced = True

    pool = SyncPool(asyncio.get_running_loop())
    file = Watched(tmp_path / "log")
    assert await told(pool, append(file, b"x", synced=(file,))) is None
    assert file.synced
    pool.close()
    file.close()
