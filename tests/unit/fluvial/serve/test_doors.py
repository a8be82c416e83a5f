"""Processes beside the server: they end with it, and so does what they have started."""

import asyncio
from pathlib import Path

import psutil
import pytest

from fluvial.serve.doors import door
from fluvial.serve.doors.door import Door

HOLDS_ON = """
import json, subprocess, sys, time
child = subprocess.Popen(["sleep", "300"])
print(json.dumps({"child": child.pid}), flush=True)
time.sleep(300)
"""


async def test_who_does_not_end_is_killed_with_what_holds_its_pipes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "holds_on.py").write_text(HOLDS_ON)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(door, "_ENDS_WITHIN_S", 0.2)
    said: asyncio.Queue[str] = asyncio.Queue()
    held = Door(title="it", module="holds_on", given={}, told=lambda told: str(told["child"]))
    running = asyncio.create_task(held.run(said.put_nowait))
    child = psutil.Process(int(await said.get()))
    running.cancel()
    async with asyncio.timeout(60):
        await asyncio.wait([running])
    assert child.wait(60) is None
