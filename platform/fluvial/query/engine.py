"""
One door for statements: each goes to Sail or to Spark, and its answer says which it was and how fresh it is.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

from fluvial.config import Settings
from fluvial.delta.log import TableLog
from fluvial.errors import FluvialError
from fluvial.extras import needed
from fluvial.query.made_frames import Frames, OtherAnswerError, OwnFrames, leave_to_spark
from fluvial.query.old_versions import is_old, linked
from fluvial.query.references import (
    INTERNAL_COLUMNS,
    Query,
    Reference,
    UnclearError,
    quoted,
    read_query,
)
from fluvial.query.routing import (
    changes_session,
    is_query,
    why_spark,
    why_spark_answer,
    why_spark_settings,
    why_spark_types,
)
from fluvial.query.rows import Columns, columns_of, rows_of
from fluvial.query.sail import Sail, SailError
from fluvial.query.sources import SailSources, SparkSources
from fluvial.query.versions import At, NoSuchOffsetError, Version, resolve
from fluvial.spark.connect import is_local
from fluvial.spark.warehouse import DATABASES, Warehouse

if TYPE_CHECKING:
    import pyarrow as pa


class Engine(StrEnum):
    """
    Who answers.
    """

    AUTO = "auto"
    SAIL = "sail"
    SPARK = "spark"


class RoutingError(FluvialError):
    """
    The engine that was asked for does not take a statement.
    """


AskSpark = Callable[[str], Any]
"""Gives Spark's DataFrame for a statement; starts Spark on its first call."""


class Fresh(Protocol):
    """
    Reads what the log holds behind versions of tables.
    """

    def __call__(self, tables: Sequence[str]) -> Mapping[str, Version]:
        """
        The newest version of each table, with the records behind it where they can be read into it.
        """
        ...

    def as_of(self, table: str, places: Sequence[At]) -> Version:
        """
        A table with the records up to the offsets of places, made of what the log holds where no version ends there.

        Raises :class:`~fluvial.errors.FluvialError`.
        """
        ...


@dataclass(slots=True)
class Answer:
    """
    An answer that is being read: its rows, or the same as Arrow with its schema; one of them may be taken, once.
    """

    columns: Columns
    rows: Callable[[], Iterator[Sequence[Any]]]
    arrow: "Callable[[], tuple[pa.Schema, Iterator[pa.RecordBatch]]]"


@dataclass(slots=True)
class Told:
    """
    What is said below an answer.
    """

    engine: Engine
    seconds: float
    versions: Sequence[Version] = ()

    def __str__(self) -> str:
        parts = [f"{self.engine}, {self.seconds:.2f} s", *map(str, self.versions)]
        return "; ".join(parts)


@dataclass(slots=True, kw_only=True)
class Door:
    """
    Takes statements for one warehouse; close it after use.

    `ask_spark` makes Spark's DataFrame of a statement, `say` hears why a statement goes to Spark, and `memory_bytes`
    is what Sail may take for its statements. With `fresh` tables are read with what their logs hold behind them; where
    no version of a table ends at `places`, `as_of` makes the table as it is there.
    What Sail is to make of DataFrames is said by functions that `frames` calls.
    """

    settings: Settings
    ask_spark: AskSpark
    say: Callable[[str], None]
    engine: Engine = Engine.AUTO
    places: Sequence[At] = ()
    memory_bytes: int | None = None
    fresh: Fresh | None = None
    as_of: Callable[[str, Sequence[At]], Version] | None = None
    frames: Frames = field(default_factory=OwnFrames)
    _folder: "TemporaryDirectory[str] | None" = None
    _sail: Sail | None = None
    _spark_only: str | None = None
    _columns: dict[tuple[str, int], Columns] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._spark_only = self._without_sail()
        if self.engine is Engine.SAIL and self._spark_only is not None:
            raise RoutingError(f"--engine sail: {self._spark_only}")

    def warm_up(self) -> None:
        """
        Let Sail start, where statements may go to it, while something else is done.
        """
        if self.engine is not Engine.SPARK and self._spark_only is None:
            self._engine()

    @property
    def warehouse(self) -> Warehouse:
        """
        The warehouse whose tables are known.
        """
        return Warehouse.at(self.settings.warehouse)

    def tables(self) -> list[str]:
        """
        The names of the tables there are; none where the warehouse is not on this machine.
        """
        return [] if self.warehouse.local is None else self.warehouse.tables()

    def columns(self, table: str) -> Columns:
        """
        The columns of a table that `select *` gives, and their types; none where that cannot be told without Spark.
        """
        try:
            newest = TableLog(None, self.warehouse.path(table)).newest_version()
            return [] if newest is None or self._spark_only else _shown(self._columns_at(table, newest))
        except (FluvialError, OSError):
            return []

    def close(self) -> None:
        """
        End Sail's process.
        """
        self.frames.close()
        if self._sail is not None:
            self._sail.close()
            self._sail = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def is_walled_in(self) -> bool:
        """
        Whether what Sail reads is bounded by the kernel, and not by what statements are let through alone.
        """
        return self._engine().is_walled_in

    def cancel(self) -> None:
        """
        End what Sail is at, from any thread; the statement is answered by SailError.
        """
        self.frames.kill()
        if self._sail is not None:
            self._sail.kill()

    def answer(
        self,
        statement: str,
        hand_over: Callable[[Answer], None],
        *,
        again: Callable[[], None],
        rows_max: int | None = None,
    ) -> Told:
        """
        Give the answer, of at most `rows_max` rows, to `hand_over`, which reads it; `again` makes it forget what it has
        read of one that broke off.

        Raises what the engines raise; what Sail refuses or breaks off goes to Spark, unless Sail alone was asked for.
        """
        began = time.perf_counter()
        query, versions, unclear = self._read(statement)
        reason = self._why_not_sail(statement, unclear)
        engine = Engine.SPARK
        if reason is None:
            assert query is not None
            try:
                with self._by_sail(query, versions, rows_max) as answer:
                    hand_over(answer)
                engine = Engine.SAIL
            except SailError as error:
                if self.engine is Engine.SAIL:
                    raise
                again()
                reason = str(error) if isinstance(error, OtherAnswerError) else f"Sail refused ({error})"
                self.say(f"{reason}: asking Spark")
        if engine is Engine.SPARK:
            if self.engine is Engine.SAIL:
                raise RoutingError(f"--engine sail: {reason}")
            hand_over(self._by_spark(statement, query, versions, rows_max))
            if changes_session(statement) and self._spark_only is None:
                self._spark_only = "an earlier statement has changed the session"
        return Told(engine=engine, seconds=time.perf_counter() - began, versions=[*versions.values()])

    def _without_sail(self) -> str | None:
        """Why no statement of this warehouse goes to Sail, None where it may."""
        if self.engine is Engine.SPARK:
            return "Spark was asked for"
        if not Sail.is_installed():
            if self.engine is Engine.SAIL or find_spec("pyspark") is None:
                with needed():
                    import pysail  # noqa: F401
            return "Sail is not installed"
        if self.warehouse.local is None:
            return f"{self.settings.warehouse} is not on this machine"
        return why_spark_settings(self.settings.spark_conf)

    def _why_not_sail(self, statement: str, unclear: str | None) -> str | None:
        return self._spark_only or why_spark(statement) or unclear

    def _read(self, statement: str) -> tuple[Query | None, dict[Reference, Version], str | None]:
        """The statement's references and the versions they mean, or why these cannot be told."""
        if not is_query(statement) or self.warehouse.local is None:
            if self.places:
                raise RoutingError("--at: only a query of tables on this machine is asked as of an offset")
            if self.fresh is not None:
                raise RoutingError(
                    "--fresh: only a query of tables on this machine is answered with what the log holds"
                )
            return None, {}, None
        known = self.tables()
        try:
            query = read_query(statement, DATABASES, known)
            unknown = next((table for table in query.tables if table not in known), None)
            if unknown is not None:
                from fluvial.spark.session import UnknownTableError

                raise UnknownTableError(unknown, known)
            return query, self._versions(query), None
        except UnclearError as error:
            if self.places or self.fresh is not None:
                raise RoutingError(f"{'--at' if self.places else '--fresh'}: {error}") from error
            return None, {}, str(error)

    def _versions(self, query: Query) -> dict[Reference, Version]:
        found: dict[Reference, Version] = {}
        same: dict[tuple[str, int | None, str | None], Version] = {}
        if self.fresh is not None:
            of_now = [each.table for each in query.references if each.version is None and each.timestamp is None]
            same = {(table, None, None): version for table, version in self.fresh([*dict.fromkeys(of_now)]).items()}
        for each in query.references:
            meant = (each.table, each.version, each.timestamp)
            if meant not in same:
                same[meant] = self._resolved(each)
            found[each] = same[meant]
        return found

    def _resolved(self, reference: Reference) -> Version:
        log, table = TableLog(None, self.warehouse.path(reference.table)), reference.table
        try:
            return resolve(log, table, version=reference.version, timestamp=reference.timestamp, places=self.places)
        except NoSuchOffsetError as error:
            if self.as_of is None or (error.below is None and not error.made_of):
                raise
            try:
                return self.as_of(table, self.places)
            except FluvialError as failure:
                raise NoSuchOffsetError(f"{error}; it is not made from the log: {failure}") from failure

    @contextmanager
    def _by_sail(self, query: Query, versions: Mapping[Reference, Version], rows_max: int | None) -> Iterator[Answer]:
        with_internal = query.names_internal()
        read = [column for each in versions for column in self._columns_at(each.table, versions[each].version)]
        leave_to_spark(why_spark_types(query.text, read))
        sail = self._engine()
        with TemporaryDirectory(dir=sail.scratch, ignore_cleanup_errors=True) as folder:
            sources = SailSources(
                sail=sail,
                frames=self.frames,
                place=self._place,
                columns_at=self._columns_at,
                folder=Path(folder),
            )

            def source(reference: Reference) -> str:
                meant = versions[reference]
                columns = self._columns_at(reference.table, meant.version)
                shown = columns if with_internal else _shown(columns)
                return f"SELECT {', '.join(quoted(name) for name, _ in shown)} FROM {sources.current(meant)}"

            with sail.ask(query.rewritten(source), rows_max=rows_max) as reader:
                columns = columns_of(reader.schema)
                leave_to_spark(why_spark_answer(query.text, [kind for _, kind in columns]))
                yield Answer(
                    columns=columns,
                    rows=lambda: rows_of(reader),
                    arrow=lambda: (reader.schema, iter(reader)),
                )

    def _columns_at(self, table: str, version: int) -> Columns:
        found = self._columns.get((table, version))
        if found is None:
            found = columns_of(self._engine().schema(f"SELECT * FROM {self._place(table, version)}"))
            self._columns[table, version] = found
        return found

    def _place(self, table: str, version: int) -> str:
        folder = Path(self.warehouse.path(table))
        if is_old(folder, version):
            try:
                folder = linked(folder, version, self._engine().scratch)
            except OSError as error:
                raise SailError(f"{folder} cannot be read: {error.strerror}") from error
        return f"delta.{quoted(str(folder))} VERSION AS OF {version}"

    def _engine(self) -> Sail:
        if self._sail is not None and not self._sail.is_running:
            self._sail.close()
            self._sail = None
        if self._sail is None:
            self._sail = Sail(self._folders(), memory_bytes=self.memory_bytes)
        return self._sail

    def _folders(self) -> list[Path]:
        """What Sail may read: the warehouse, and where a link of it leads."""
        root = self.warehouse.local
        assert root is not None, "Sail is asked about local tables only"
        tables = (Path(self.warehouse.path(table)) for table in self.tables())
        return [root.resolve(), *(folder.resolve() for folder in tables if folder.is_symlink())]

    def _by_spark(
        self, statement: str, query: Query | None, versions: Mapping[Reference, Version], rows_max: int | None
    ) -> Answer:
        frame = self.ask_spark(statement if query is None else self._for_spark(query, versions))

        def rows() -> Iterator[Sequence[Any]]:
            return frame.toLocalIterator() if rows_max is None else iter(frame.limit(rows_max).collect())

        def arrow() -> "tuple[pa.Schema, Iterator[pa.RecordBatch]]":
            table = frame.toArrow()
            return table.schema, iter(table.to_batches())

        columns = [(each.name, each.dataType.simpleString()) for each in frame.schema.fields]
        return Answer(columns=columns, rows=rows, arrow=arrow)

    def _for_spark(self, query: Query, versions: Mapping[Reference, Version]) -> str:
        """The text as it stands, but for internal columns and for a version that the text does not name."""
        hidden = {} if query.names_internal() else {table: self._internal(table) for table in query.tables}
        if not any(hidden.values()) and not self.places and self.fresh is None:
            return query.text
        sources = self._spark_sources(versions)

        def source(reference: Reference) -> str:
            names = hidden.get(reference.table)
            columns = f"* EXCEPT ({', '.join(names)})" if names else "*"
            return f"SELECT {columns} FROM {sources.current(versions[reference])}"

        return query.rewritten(source)

    def _spark_sources(self, versions: Mapping[Reference, Version]) -> SparkSources:
        if any(each.newer is not None for each in versions.values()):
            if not is_local(self.settings.spark_master):
                raise RoutingError(f"--fresh: Spark on {self.settings.spark_master} cannot read a file of this machine")
            if self._folder is None:
                self._folder = TemporaryDirectory(prefix="fluvial-sql-", ignore_cleanup_errors=True)
        return SparkSources(ask=self.ask_spark, folder=Path("" if self._folder is None else self._folder.name))

    def _internal(self, table: str) -> list[str]:
        names = self.ask_spark(f"SELECT * FROM {table}").columns
        return [column for column in INTERNAL_COLUMNS if column in names]


def _shown(columns: Columns) -> Columns:
    return [(name, kind) for name, kind in columns if name not in INTERNAL_COLUMNS]
