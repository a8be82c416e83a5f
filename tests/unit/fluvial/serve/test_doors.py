"""Processes beside the server: they end with it, and so does what they have started."""

import asyncio
from pathlib import Path

import psutil
import pytest

from fluvial.serve.doors import door
from fluvial.serve.doors.door import Door

HOLDS_ON = """
import json, subprocess, sys, time
child = subprocess.Popen(["sleep", "300"], start_new_session=IN_ITS_OWN)
print(json.dumps({"child": child.pid}), flush=True)
time.sleep(300)
"""


async def child_of_one_that_was_told_to_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, in_its_own: bool
) -> psutil.Process:
    """What holds the pipes of a process that did not end, perhaps out of reach, once that has been killed."""
    (folder / "holds_on.py").write_text(HOLDS_ON.replace("IN_ITS_OWN", str(in_its_own)))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(door, "_ENDS_WITHIN_S", 0.2)
    said: asyncio.Queue[str] = asyncio.Queue()
    held = Door(title="it", module="holds_on", given={}, told=lambda told: str(told["child"]))
    running = asyncio.create_task(held.run(said.put_nowait))
    child = psutil.Process(int(await said.get()))
    running.cancel()
    try:
        async with asyncio.timeout(60):
            await asyncio.wait([running])
    except TimeoutError:
        child.kill()
        raise
    return child


async def test_who_does_not_end_is_killed_with_what_holds_its_pipes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = await child_of_one_that_was_told_to_end(tmp_path, monkeypatch, in_its_own=False)
    assert child.wait(60) is None


async def test_who_holds_its_pipes_out_of_reach_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(60):
        before = psutil.Process().num_fds()
        child = await child_of_one_that_was_told_to_end(tmp_path, monkeypatch, in_its_own=True)
        assert child.is_running()
        try:
            while psutil.Process().num_fds() > before:  # noqa: ASYNC110 - a transport tells its own protocol alone
                await asyncio.sleep(0.01)
        finally:
            child.kill()
