"""
A further port of `fluvial serve`: its process is started, waited for, started again where it dies, and ended.
"""

import asyncio
import json
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from fluvial.errors import FluvialError
from fluvial.query import jail

HOST = "127.0.0.1"

_log = logging.getLogger(__name__)

# What a process that runs the code of strangers may know of ours; passwords and keys are in other variables.
_PASSED_ON = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "FLUVIAL_DEBUG")
_ENDS_WITHIN_S = 10.0
_AGAIN_AFTER_S = 1.0
_SAID_MAX = 1 << 16


class DoorError(FluvialError):
    """
    A further port cannot be opened.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """
    One port: what it is called and by which option, the module that serves it, and what that is told.

    `told` makes a line for the user of the port and of what the process said when it was ready.
    """

    title: str
    option: str
    module: str
    port: int
    given: Mapping[str, Any]
    told: Callable[[int, Mapping[str, Any]], str]
    environment: Mapping[str, str] = field(default_factory=dict)

    async def run(self, say: Callable[[str], None]) -> None:
        """
        Keep the port open until cancelled. Raises :class:`DoorError` where it cannot be opened the first time.
        """
        port = _free(self)
        ready = await self._once(port, say)
        while True:
            _log.warning("%s has ended%s; it starts again", self.title, "" if ready is None else f": {ready}")
            await asyncio.sleep(_AGAIN_AFTER_S)
            try:
                ready = await self._once(port, lambda line: None)
            except DoorError as error:
                ready = str(error)

    async def _once(self, port: int, say: Callable[[str], None]) -> str | None:
        """Run the process until it ends, and return what it said last. Raises DoorError when it is never ready."""
        with (
            tempfile.TemporaryDirectory(prefix="fluvial-door-", ignore_cleanup_errors=True) as scratch,
            tempfile.TemporaryFile() as said,
        ):
            process = await self._started(port, scratch, said)
            try:
                assert process.stdout is not None
                line = await process.stdout.readline()
                if not line:
                    await process.wait()
                    raise DoorError(f"{self.title} did not start: {_last_line(said) or 'its process has ended'}")
                say(self.told(port, json.loads(line)))
                await process.wait()
                return _last_line(said)
            finally:
                await _end(process)

    async def _started(self, port: int, scratch: str, said: BinaryIO) -> asyncio.subprocess.Process:
        passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        given = {**self.given, "port": port, "scratch": scratch}
        # -P: nothing is imported from the folder that a user happens to be in.
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", self.module, json.dumps(given)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=None if os.environ.get("FLUVIAL_DEBUG") else said,
            cwd=scratch,
            env={"HOME": scratch, "TMPDIR": scratch, "TZ": "UTC", **passed_on, **self.environment},
        )


async def beside(serving: Coroutine[Any, Any, None], doors: Sequence[Door], say: Callable[[str], None]) -> None:
    """
    Serve, with these doors open as long; one that cannot be opened ends it with its :class:`DoorError`.
    """
    tasks = [asyncio.ensure_future(serving), *(asyncio.ensure_future(door.run(say)) for door in doors)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def walled(title: str, *, allow_unconfined: bool) -> bool:
    """
    Whether a door's process will see its own files alone. Raises :class:`DoorError` where it can not, and must.
    """
    if jail.is_possible():
        return True
    if allow_unconfined:
        return False
    raise DoorError(
        f"{title} runs the code of its clients, and this kernel has no landlock (Linux 5.13) to keep that from your "
        "files: --allow-unconfined lets every process of this machine act as you"
    )


def _free(door: Door) -> int:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((HOST, door.port))
        except OSError as error:
            raise DoorError(f"{HOST}:{door.port}: {error.strerror or error}; choose another {door.option}") from error
        return int(trial.getsockname()[1])


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ask the process to end by the end of its stdin, and see to it."""
    if process.returncode is not None:
        return
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), _ENDS_WITHIN_S)
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _last_line(said: BinaryIO) -> str | None:
    said.seek(max(0, said.seek(0, os.SEEK_END) - _SAID_MAX))
    lines = said.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else None
