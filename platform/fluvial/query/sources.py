"""
The tables of one statement as an engine reads them, each with the records that its version has behind it.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluvial.query.plans import why_spark_plan
from fluvial.query.references import quoted
from fluvial.query.rows import Columns
from fluvial.query.sail import Sail, SailError
from fluvial.query.versions import MakesFrame, Sources, Version

if TYPE_CHECKING:
    import pyarrow as pa

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


@dataclass(kw_only=True)
class SailSources:
    """
    For a statement that Sail answers: `place` and `columns_at` are what stands behind FROM for a version of a table and
    its columns. Files go to `folder`, which Sail may read and write.

    Whatever Sail refuses is :class:`~fluvial.query.sail.SailError`.
    """

    sail: Sail
    place: Callable[[str, int], str]
    columns_at: Callable[[str, int], Columns]
    folder: Path
    _made: dict[tuple[str, int], str] = field(default_factory=dict)
    _session: Any = None

    def of(self, table: str, version: int) -> str:
        return self.place(table, version)

    def columns(self, table: str, version: int) -> Columns:
        return self.columns_at(table, version)

    def current(self, version: Version) -> str:
        if version.newer is not None:
            leave_to_spark(version.newer.why_spark(self.columns_at(version.table, version.version)))
        return _current(self, version, self._made)

    def rows(self, statement: str) -> "pa.Table":
        with self.sail.ask(statement) as reader:
            return reader.read_all()

    def made(self, name: str, make: MakesFrame, statements: Sequence[str]) -> str:
        if _has_spark():
            raise OtherAnswerError("Spark runs in this process")
        session = self._connected()
        path = self.folder / f"made-{name}-{len(list(self.folder.iterdir()))}.parquet"
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
        return f"parquet.{quoted(str(path))}"

    def close(self) -> None:
        """
        End the session of Spark Connect, if there is one.
        """
        if self._session is not None:
            self._session.client.close()
            self._session = None

    def _connected(self) -> Any:
        if self._session is None:
            self._session = _session_at(self.sail.connect())
        return self._session


@dataclass(kw_only=True)
class SparkSources:
    """
    For a statement that Spark answers, by `ask`, which gives a DataFrame; it reads files in `folder`.
    """

    ask: Callable[[str], Any]
    folder: Path
    _made: dict[tuple[str, int], str] = field(default_factory=dict)

    def of(self, table: str, version: int) -> str:
        return f"{table} VERSION AS OF {version}"

    def columns(self, table: str, version: int) -> Columns:
        fields = self.ask(f"SELECT * FROM {self.of(table, version)}").schema.fields
        return [(each.name, each.dataType.simpleString()) for each in fields]

    def current(self, version: Version) -> str:
        return _current(self, version, self._made)

    def rows(self, statement: str) -> "pa.Table":
        answer: pa.Table = self.ask(statement).toArrow()
        return answer

    def made(self, name: str, make: MakesFrame, statements: Sequence[str]) -> str:
        view = quoted(f"_fluvial_fresh_{name}_{len(self._made)}")
        make([self.ask(each) for each in statements]).createOrReplaceTempView(view.strip("`"))
        return view


def _current(sources: Sources, version: Version, made: dict[tuple[str, int], str]) -> str:
    """What stands behind FROM for a table with what is behind it, which is made once for a statement."""
    if version.newer is None:
        return sources.of(version.table, version.version)
    of_now = (version.table, version.version)
    if of_now not in made:
        made[of_now] = f"({version.newer.query(version, sources)})"
    return made[of_now]


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
