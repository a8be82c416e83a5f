"""
The functions of pipelines in a process of their own, which can be ended whatever they are at.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from fluvial.query.frames import Frame, LostEngineError, read_frame, write_json
from fluvial.query.made_frames import OtherAnswerError
from fluvial.query.sail import Sail, SailError, limit_memory
from fluvial.query.versions import MakesFrame

_PATIENCE_S = 5.0


@dataclass(slots=True, kw_only=True)
class OtherProcess:
    """
    Calls functions of a project in another process, as :class:`~fluvial.query.made_frames.Frames` says.

    It is started when it is first needed, and again when it has ended; it may take `memory_bytes` of memory.
    """

    project: str
    memory_bytes: int
    _process: "subprocess.Popen[bytes] | None" = None

    def write(self, sail: Sail, name: str, make: MakesFrame, statements: Sequence[str], path: Path) -> None:
        socket = sail.connect()
        process = self._running()
        call = {
            "call": make.told(),
            "socket": str(socket),
            "name": name,
            "statements": [*statements],
            "path": str(path),
        }
        try:
            write_json(cast(BinaryIO, process.stdin), Frame.ASK, call)
            kind, body = read_frame(cast(BinaryIO, process.stdout))
        except (LostEngineError, BrokenPipeError) as error:
            self.close()
            raise SailError(f"{name}: the process that calls its function has ended") from error
        if kind is Frame.REFUSED:
            told = json.loads(body)
            raise (OtherAnswerError if told["is_other"] else SailError)(told["message"])

    def kill(self) -> None:
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait(_PATIENCE_S)
        cast(BinaryIO, process.stdout).close()
        with suppress(BrokenPipeError):
            cast(BinaryIO, process.stdin).close()

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "fluvial.fresh.frames_worker", json.dumps({"project": self.project})],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            limit_memory(self._process.pid, self.memory_bytes)
        return self._process
