"""`fluvial serve`: in this process, where its event loop runs in a thread, or in one of its own with further ports."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from fluvial.serve.server import Listening, serve_rows
from fluvial.serve.service import Limits
from fluvial.serve.sql import Statements
from fluvial.serve.warehouse import ServedWarehouse

# A JVM that was killed ends, and its files are removed, once the disk has answered; tests that sync may keep it busy.
ENDS_WITHIN_S = 240


@contextmanager
def serving(
    warehouse: ServedWarehouse,
    *,
    preload: Sequence[str] = (),
    statements: Callable[[], Statements] | None = None,
    limits: Limits | None = None,
    flight_started: Callable[[int], None] | None = None,
) -> Iterator[httpx.Client]:
    """A client of a server that ends with this; with `flight_started`, which hears the port, one of Flight SQL too."""
    bound: list[int] = []
    is_up = threading.Event()
    ended: list[Any] = []
    loop = asyncio.new_event_loop()

    def started(port: int) -> None:
        bound.append(port)
        is_up.set()

    async def main() -> None:
        listening = Listening(port=0, flight_port=None if flight_started is None else 0)
        try:
            await serve_rows(
                warehouse,
                listening,
                preload=preload,
                statements=statements,
                limits=limits,
                started=started,
                flight_started=flight_started,
            )
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            ended.append(error)
        finally:
            is_up.set()

    task = loop.create_task(main())

    def run() -> None:
        loop.run_until_complete(task)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        is_up.wait(30)
        with httpx.Client(base_url=f"http://127.0.0.1:{bound[0]}", timeout=30) as client:
            yield client
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(30)
        loop.close()
        warehouse.close()
    if ended:
        raise ended[0]


@contextmanager
def serving_beside(
    folder: Path, warehouse: Path, *words: str, schemes: Sequence[str]
) -> Iterator[tuple["subprocess.Popen[str]", dict[str, str]]]:
    """A process in `folder`, with further ports that `words` ask for; and its addresses, by their schemes."""
    command = [sys.executable, "-m", "fluvial", "serve", "--warehouse", str(warehouse), "--port", "0", *words]
    # What a killed server leaves goes with the test.
    environment = os.environ | {"TMPDIR": str(folder), "PYTHONFAULTHANDLER": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            found: dict[str, str] = {}
            said = ""
            told = re.compile(rf"({'|'.join(schemes)}|http)://[\w.]+:\d+")
            while len(found) <= len(schemes):
                line = process.stdout.readline()
                said += line
                assert line, said
                found |= {each[1]: each[0] for each in told.finditer(line)}
            yield process, found
        finally:
            process.terminate()
            wait_for_the_end(process)


def wait_for_the_end(process: "subprocess.Popen[str]") -> None:
    """Of one that was told to; what it and its processes are at is told where it does not come."""
    try:
        process.wait(ENDS_WITHIN_S)
    except subprocess.TimeoutExpired as late:
        everybody = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        states = [f"{each.pid} {each.name()} {each.status()}" for each in everybody]
        process.send_signal(signal.SIGABRT)  # faulthandler writes where each thread is
        for other in everybody[1:]:
            other.kill()
        said, _ = process.communicate(timeout=60)
        raise AssertionError("\n".join([str(late), *states, said])) from late
