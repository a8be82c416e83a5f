"""
A process beside `fluvial serve`, of a further port most often: it is started, started again where it dies, and ended.
"""

import asyncio
import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fluvial.config import Settings
from fluvial.errors import FluvialError
from fluvial.extras import needed
from fluvial.free_ports import free_ports
from fluvial.http_server import listen
from fluvial.query import jail
from fluvial.spark.connect import is_local

HOST = "127.0.0.1"

_log = logging.getLogger(__name__)

# What a process that runs the code of strangers may know of ours; passwords and keys are in other variables.
_PASSED_ON = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "FLUVIAL_DEBUG")
_ENDS_WITHIN_S = 10.0
_AGAIN_AFTER_S = 1.0
_SAID_MAX = 1 << 12


class DoorError(FluvialError):
    """
    A further port cannot be opened.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """
    A process beside the server: what it is called, the module that is run, and what that is told.

    `told` makes a line for the user of what the process said when it was ready. It runs in a folder for scratch, and
    knows little of this process's environment; with `cwd` it runs there, and has the `environment` alone.
    """

    title: str
    module: str
    given: Mapping[str, Any]
    told: Callable[[Mapping[str, Any]], str]
    cwd: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    async def run(self, say: Callable[[str], None]) -> None:
        """
        Keep the process running until cancelled. Raises :class:`DoorError` where it does not start the first time.
        """
        said = await self._once(say)
        while True:
            _log.warning("%s has ended%s; it starts again", self.title, f": {said}" if said else "")
            await asyncio.sleep(_AGAIN_AFTER_S)
            try:
                said = await self._once(lambda line: None)
            except DoorError as error:
                said = str(error)

    async def _once(self, say: Callable[[str], None]) -> str:
        """Run the process until it ends, and return what it said last. Raises DoorError when it is never ready."""
        with tempfile.TemporaryDirectory(prefix="fluvial-door-", ignore_cleanup_errors=True) as scratch:
            process = await self._started(scratch)
            saying, is_ready = asyncio.create_task(_last_line(process.stderr)), False
            try:
                assert process.stdout is not None
                line = await process.stdout.readline()
                if not line:
                    raise DoorError(f"{self.title} did not start: {await saying or 'its process has ended'}")
                is_ready = True
                say(self.told(json.loads(line)))
                return await saying
            finally:
                # One that is still starting hears nothing.
                await _end(process, _ENDS_WITHIN_S if is_ready else 0)
                saying.cancel()
                # asyncio closes the pipes once all others have, and has no other way to be told.
                process._transport.close()  # type: ignore[attr-defined]

    async def _started(self, scratch: str) -> asyncio.subprocess.Process:
        given = {**self.given, "scratch": scratch}
        # -P: nothing is imported from the folder that a user happens to be in.
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", self.module, json.dumps(given)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self.cwd or scratch,
            env=self._environment(scratch),
            start_new_session=True,
        )

    def _environment(self, scratch: str) -> dict[str, str]:
        if self.cwd is not None:
            return dict(self.environment)
        return {"HOME": scratch, "TMPDIR": scratch, "TZ": "UTC", **passed_on(*_PASSED_ON), **self.environment}


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


def free_port(option: str, port: int) -> int:
    """
    The port that an option names, or a free one for 0. Raises :class:`DoorError` where it is taken.
    """
    try:
        if not port:
            return free_ports(HOST)
        listen(HOST, port).close()
    except OSError as error:
        raise DoorError(f"{HOST}:{port}: {error.strerror or error}; choose another {option}") from error
    return port


def demand_local_spark(settings: Settings, option: str) -> None:
    """
    Raise FluvialError where Spark cannot run in a process of the server.
    """
    with needed("spark"):
        import pyspark  # noqa: F401

    if not is_local(settings.spark_master):
        raise DoorError(f"{option} runs Spark in the server: spark_master is {settings.spark_master}, not local[*]")


def passed_on(*names: str) -> dict[str, str]:
    """
    Those of these variables that there are.
    """
    return {name: os.environ[name] for name in names if name in os.environ}


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


async def _end(process: asyncio.subprocess.Process, within_s: float) -> None:
    """Ask the process to end by the end of its stdin, and see to it."""
    if process.returncode is not None:
        return
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), within_s)
    except TimeoutError:
        # Its JVM too: what is waited for is the end of the process and of all who hold its pipes.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # Not for long: one may be waiting for a disk, or hold them in a session of its own.
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _ENDS_WITHIN_S)


async def _last_line(pipe: asyncio.StreamReader | None) -> str:
    """Read what a process says until it ends, and keep the end of it."""
    assert pipe is not None
    is_heard, said = bool(os.environ.get("FLUVIAL_DEBUG")), b""
    while chunk := await pipe.read(_SAID_MAX):
        if is_heard:
            sys.stderr.buffer.write(chunk)
        said = (said + chunk)[-_SAID_MAX:]
    return (said.decode(errors="replace").strip().splitlines() or [""])[-1]
