"""
The quick engine: Sail in a process of its own, which is started for the first statement and ends with this one.
"""

import io
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from fluvial.errors import FluvialError
from fluvial.query.frames import Frame, FramedAnswer, LostEngineError, RefusedError, read_frame, write_json

if TYPE_CHECKING:
    import pyarrow as pa

_PATIENCE_S = 5.0
_WHERE = re.compile(r"Flight returned [\w ]+ error, with message: ")


class SailError(FluvialError):
    """
    Sail has no answer to a statement; the text says why.
    """


class Sail:
    """
    A running Sail that reads the tables in `folders`; close it after use.

    One that needs more than `memory_bytes` for its statements ends; None lets it take what there is.
    """

    def __init__(self, folders: Sequence[Path], *, memory_bytes: int | None = None) -> None:
        self._memory_bytes = memory_bytes
        self._scratch = tempfile.TemporaryDirectory(prefix="fluvial-sql-", ignore_cleanup_errors=True)
        given = json.dumps({"readable": [str(folder) for folder in folders], "scratch": self._scratch.name})
        quiet = None if os.environ.get("FLUVIAL_DEBUG") else subprocess.DEVNULL
        # -P: nothing is imported from the folder that a user happens to be in.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fluvial.query.worker", given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=quiet,
            env=os.environ | {"RUST_LOG": os.environ.get("RUST_LOG", "error"), "TZ": "UTC"},
        )
        self._ready = False
        self._connected: Path | None = None
        self.walls: dict[str, bool] = {}

    @staticmethod
    def is_installed() -> bool:
        """
        Whether its packages are there; asking imports nothing.
        """
        return find_spec("pysail") is not None and find_spec("pyarrow") is not None

    @property
    def scratch(self) -> Path:
        """
        A folder that it may read and write in, which goes when it ends.
        """
        return Path(self._scratch.name)

    @property
    def is_walled_in(self) -> bool:
        """
        Whether it has a network of its own and sees its folders alone. Raises :class:`SailError` if it has ended.
        """
        try:
            self._wait()
        except LostEngineError as error:
            raise SailError("its process has ended") from error
        return bool(self.walls) and all(self.walls.values())

    @contextmanager
    def ask(self, statement: str, *, rows_max: int | None = None) -> "Iterator[pa.RecordBatchReader]":
        """
        The answer to a statement, batch by batch, with about `rows_max` rows at most; for a ``with``, within which
        :class:`SailError` is raised where the engine refuses the statement or ends.
        """
        import pyarrow as pa

        answer = FramedAnswer(self._stdout)
        try:
            self._wait()
            write_json(self._stdin, Frame.ASK, {"statement": statement, "rows_max": rows_max})
            # Arrow takes a short read for the end, so what reads for it goes on until it has what it was asked for.
            with pa.ipc.open_stream(pa.PythonFile(io.BufferedReader(answer), mode="r")) as reader:
                yield reader
            answer.drain()
        except RefusedError as error:
            raise SailError(_plain(str(error))) from error
        except (LostEngineError, BrokenPipeError) as error:
            raise SailError("its process has ended") from error
        finally:
            # What is left of an answer must never be taken for the next one.
            if not answer.ended:
                self.close()

    def connect(self) -> Path:
        """
        A socket at which it takes plans of Spark Connect. Whoever opens it has code run in its process, so there is
        none where the kernel does not wall that in: :class:`SailError`, as where it cannot listen.
        """
        if self._connected is None:
            if not self.is_walled_in:
                raise SailError("this machine has neither namespaces nor landlock to keep it from others")
            path = self.scratch / "connect"
            try:
                write_json(self._stdin, Frame.CONNECT, {"path": str(path)})
                kind, body = read_frame(self._stdout)
            except (LostEngineError, BrokenPipeError) as error:
                raise SailError("its process has ended") from error
            if kind is not Frame.END:
                raise SailError(f"it does not listen: {_plain(json.loads(body)['message'])}")
            self._connected = path
        return self._connected

    def schema(self, statement: str) -> "pa.Schema":
        """
        The columns of a statement's answer, which is not made.
        """
        with self.ask(statement, rows_max=0) as reader:
            return reader.schema

    def kill(self) -> None:
        """
        End the process, whatever it is at; from any thread. Who waits for an answer of it is told so.
        """
        self._process.kill()

    def close(self) -> None:
        """
        End the process and forget it; a second time does nothing.
        """
        self.kill()
        self._process.wait(_PATIENCE_S)
        self._stdout.close()
        with suppress(BrokenPipeError):
            self._stdin.close()
        self._scratch.cleanup()

    @property
    def is_running(self) -> bool:
        """
        Whether its process can take a statement.
        """
        return self._process.poll() is None

    def _wait(self) -> None:
        if not self._ready:
            kind, body = read_frame(self._stdout)
            if kind is not Frame.READY:
                raise LostEngineError
            self.walls = json.loads(body)
            if self._memory_bytes is not None:
                limit_memory(self._process.pid, self._memory_bytes)
            self._ready = True

    @property
    def _stdin(self) -> BinaryIO:
        return cast(BinaryIO, self._process.stdin)

    @property
    def _stdout(self) -> BinaryIO:
        return cast(BinaryIO, self._process.stdout)


def limit_memory(pid: int, bytes_more: int) -> None:
    """
    Let a process have so much more than it has; what its threads have reserved for their stacks is in that.
    """
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    has = re.search(r"^VmData:\s+(\d+) kB$", status, re.MULTILINE)
    if has is not None:
        limit = int(has[1]) * 1024 + bytes_more
        resource.prlimit(pid, resource.RLIMIT_DATA, (limit, limit))


def _plain(message: str) -> str:
    """What Sail said, in one line, without what carried it."""
    line = " ".join(_WHERE.sub("", message).split())
    return re.sub(r"\. gRPC client debug context: .*$| Client context: .*$", "", line)
