"""
What functions make of DataFrames, written by the Sail that the DataFrames are of: they are those of Spark Connect.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fluvial.query.plans import why_spark_plan
from fluvial.query.sail import Sail, SailError
from fluvial.query.versions import MakesFrame

_REMOTE = "SPARK_CONNECT_MODE_ENABLED"
"""The variable by which PySpark's functions are told that they are for frames of Spark Connect."""


class OtherAnswerError(SailError):
    """
    Sail would answer, and not as Spark does.
    """


def leave_to_spark(reason: str | None) -> None:
    """
    Raise :class:`OtherAnswerError` where there is a reason.
    """
    if reason is not None:
        raise OtherAnswerError(reason)


class Frames(Protocol):
    """
    Where functions are called.
    """

    def write(self, sail: Sail, name: str, make: MakesFrame, statements: Sequence[str], path: Path) -> None:
        """
        Have Sail write a folder of Parquet files at `path`: what `make` makes of its answers to statements.

        Raises :class:`~fluvial.query.sail.SailError`, which calls it by `name`.
        """
        ...

    def kill(self) -> None:
        """
        End what is being called, from any thread, where that can be.
        """
        ...

    def close(self) -> None:
        """
        Let go of what is held between calls.
        """
        ...


@dataclass(slots=True)
class OwnFrames:
    """
    Calls functions in this process, which nothing ends but they themselves.
    """

    _session: Any = None
    _socket: Path | None = None

    def write(self, sail: Sail, name: str, make: MakesFrame, statements: Sequence[str], path: Path) -> None:
        if _has_spark():
            raise OtherAnswerError("Spark runs in this process")
        self.write_at(sail.connect(), name, make, statements, path)

    def write_at(self, socket: Path, name: str, make: MakesFrame, statements: Sequence[str], path: Path) -> None:
        """
        As :meth:`write`, by the Sail that takes plans at a socket.
        """
        session = self._at(socket)
        try:
            with _for_connect():
                frames = [session.sql(each) for each in statements]
                answer = make(frames)
            read = [column for each in frames for column in each.dtypes]
            leave_to_spark(
                why_spark_plan(answer._plan.to_proto(session.client), frozenset(statements), read, answer.dtypes)
            )
            _write(answer, path)
        except SailError:
            raise
        except Exception as error:
            # Whatever the function does that Sail has not, or that PySpark's client of it has not.
            raise SailError(f"{name}: {' '.join(str(error).split())[:300]}") from error

    def kill(self) -> None:
        pass

    def close(self) -> None:
        if self._session is not None:
            self._session.client.close()
            self._session = self._socket = None

    def _at(self, socket: Path) -> Any:
        if self._socket != socket:
            self.close()
            self._session, self._socket = _session_at(socket), socket
        return self._session


def _write(answer: Any, path: Path) -> None:
    """Have Sail write what a frame is; of one without rows it writes no file, and so no columns."""
    answer.write.parquet(str(path))
    if not any(path.glob("*.parquet")):
        import pyarrow.parquet as pq

        path.mkdir(exist_ok=True)
        pq.write_table(answer.limit(0).toArrow(), path / "none.parquet")


def _has_spark() -> bool:
    """Whether a Spark runs in this process, whose frames would be taken for those of Spark Connect meanwhile."""
    # A package that is a client of Spark Connect alone has no such class.
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    return context is not None and context._active_spark_context is not None


@contextmanager
def _for_connect() -> Iterator[None]:
    """Have PySpark's functions make expressions of Spark Connect."""
    before = os.environ.get(_REMOTE)
    os.environ[_REMOTE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_REMOTE]
        else:
            os.environ[_REMOTE] = before


def _session_at(socket: Path) -> Any:
    """A session of Spark Connect at a socket in the file system, which is no default for anybody."""
    try:
        from pyspark.sql.connect.client import ChannelBuilder
        from pyspark.sql.connect.session import SparkSession
    except ImportError as error:
        raise SailError('what speaks Spark Connect is not installed: pip install "fluvial[connect]"') from error

    class Builder(ChannelBuilder):  # type: ignore[misc]
        host = "localhost"

        def toChannel(self) -> Any:  # noqa: N802
            return self._insecure_channel(f"unix:{socket}")

    return SparkSession(connection=Builder([("grpc.default_authority", "localhost")]))
