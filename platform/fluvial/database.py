"""
Tables in a program or a notebook: `fluvial.connect()` gives queries, rows by key and changes, without a JVM.

    db = fluvial.connect()
    db.sql("select city, count(*) n from state.customers group by city").df()
    db.table("state.customers").get("ada")
"""

import datetime as dt
import html
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from fluvial.config import Settings, load_settings
from fluvial.delta.difference import Source, compare
from fluvial.delta.snapshot import read_snapshot
from fluvial.errors import FluvialError
from fluvial.extras import needed
from fluvial.query.engine import Answer, Door, Engine, Fresh, Told
from fluvial.query.references import INTERNAL_COLUMNS
from fluvial.query.rendering import TABLE_ROWS_MAX, html_table
from fluvial.query.rows import columns_of, rows_of
from fluvial.query.versions import At, Version
from fluvial.query.words import StatementError, bound, parameters_of, used_parameters
from fluvial.serve.errors import BadKeyError
from fluvial.serve.keys import key_columns
from fluvial.serve.table import Row, ServedTable, View, demand_fresh
from fluvial.serve.warehouse import ServedWarehouse

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa

_INT_MAX = 2**31
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Result:
    """
    The answer to a statement, which `told` says the engine, the time and the versions of.
    """

    table: "pa.Table"
    told: Told

    def arrow(self) -> "pa.Table":
        """
        The rows as an Arrow table.
        """
        return self.table

    def df(self) -> "pandas.DataFrame":
        """
        The rows as a DataFrame of pandas.
        """
        with needed():
            import pandas  # noqa: F401
        return self.table.to_pandas()

    def pl(self) -> "polars.DataFrame":
        """
        The rows as a DataFrame of Polars, which is installed beside fluvial.
        """
        try:
            import polars
        except ModuleNotFoundError as error:
            raise FluvialError("polars is not installed: pip install polars") from error
        frame: polars.DataFrame = polars.from_arrow(self.table)
        return frame

    def rows(self) -> list[dict[str, Any]]:
        """
        The rows as dicts, with the values that Spark gives: instants are in UTC, without a zone.
        """
        return [dict(zip(self.table.column_names, row, strict=True)) for row in rows_of(self.table.to_batches())]

    def _repr_html_(self) -> str:
        """
        The first rows as a notebook shows them.
        """
        shown = self.table.slice(0, TABLE_ROWS_MAX)
        table = html_table(columns_of(shown.schema), list(rows_of(shown.to_batches())), self.table.num_rows)
        return f"{table}<p>{html.escape(str(self.told))}</p>"

    def __str__(self) -> str:
        return f"{self.table.num_rows} rows of {', '.join(self.table.column_names)} ({self.told})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """
    What became of one key between two versions: its row before and after, None where there was none.
    """

    kind: Literal["added", "removed", "changed"]
    key: tuple[Any, ...]
    before: Row | None
    after: Row | None


class Table:
    """
    A table whose rows are looked up by key.
    """

    def __init__(self, served: ServedTable, ask: Callable[[str], Result]) -> None:
        self._served = served
        self._ask = ask  # with what the log holds behind the table
        self.name = served.name

    @property
    def version(self) -> int:
        """
        The table's newest version.
        """
        return self._served.newest().version

    def get(
        self, *key: Any, columns: Sequence[str] | None = None, version: int | None = None, fresh: bool = False
    ) -> Row | None:
        """
        The row with this key, one value for each key column; None where there is none.

        With `fresh` it is that of the newest version and of what the table's topic holds behind it. Raises
        :class:`fluvial.serve.errors.ServeError` for a key, a column or a version that the table has not, and
        :class:`fluvial.errors.FluvialError` where it cannot be fresh.
        """
        view = self._fresh_view(version) if fresh else self._view(version)
        wanted = view.key.of_value(list(key))
        if not fresh:
            return view.get(wanted, columns)
        found = self._ask(view.lookup(wanted, columns))
        demand_fresh(found.told.versions[0])
        return next(iter(found.rows()), None)

    def get_all(
        self,
        keys: Sequence[Any],
        *,
        columns: Sequence[str] | None = None,
        version: int | None = None,
        fresh: bool = False,
    ) -> list[Row | None]:
        """
        The rows of several keys in their order, all of one version; a key of several columns is a tuple. `fresh` is as
        for :meth:`get`, of one end of the log for all keys.
        """
        view = self._fresh_view(version) if fresh else self._view(version)
        wanted = [view.key.of_value(key) for key in keys]
        if not fresh:
            return view.get_all(wanted, columns)
        found = self._ask(view.lookup_all(wanted, columns))
        demand_fresh(found.told.versions[0])
        return view.in_order(wanted, found.arrow().to_batches(), columns)

    def _fresh_view(self, version: int | None) -> View:
        if version is not None:
            raise FluvialError("version and fresh: a row is that of a version or up to the newest record, not both")
        return self._view(None)

    def _view(self, version: int | None) -> View:
        return self._served.newest() if version is None else self._served.at(version)


class Database:
    """
    The tables of a warehouse; close it after use, or use it in a `with` statement.
    """

    def __init__(self, settings: Settings, *, keys: Mapping[str, Sequence[str]] | None = None) -> None:
        self.settings = settings
        self._served: ServedWarehouse | None = None
        self._keys = keys
        self._spark: Any = None
        self._stops_spark = False
        self._door: Door | None = None

    @classmethod
    def at(
        cls,
        warehouse: str | Path | None = None,
        *,
        data_dir: str | Path | None = None,
        keys: Mapping[str, Sequence[str]] | None = None,
    ) -> Self:
        """
        The warehouse that settings name, as `fluvial sql` finds it.
        """
        settings = load_settings(
            warehouse=None if warehouse is None else str(warehouse),
            data_dir=None if data_dir is None else Path(data_dir),
        )
        return cls(settings, keys=keys)

    def tables(self) -> list[str]:
        """
        The names of the tables.
        """
        return self._warehouse().names()

    def table(self, name: str) -> Table:
        """
        A table by its name. Raises :class:`fluvial.serve.errors.NoTableError`.
        """
        return Table(self._warehouse().table(name), lambda statement: self.sql(statement, fresh=True))

    def sql(
        self,
        statement: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        at: str | Sequence[str] = (),
        fresh: bool = False,
        fresh_at_least: str | Sequence[str] = (),
    ) -> Result:
        """
        Ask a statement of Spark SQL, with the values of its `:name`s; `at`, `fresh` and `fresh_at_least` are as the
        options of `fluvial sql`.

        It is answered by Sail, or by Spark where that must be. Raises :class:`fluvial.errors.FluvialError`.
        """
        values = parameters_of(dict(_parameter(name, value) for name, value in (parameters or {}).items()))
        unused = values.keys() - used_parameters(statement)
        if unused:
            raise StatementError(f"the statement has no parameter :{min(unused)}")
        found: list[pa.Table] = []

        def take(answer: Answer) -> None:
            import pyarrow as pa

            schema, batches = answer.arrow()
            found.append(pa.Table.from_batches(batches, schema))

        door = self._opened()
        door.places = At.of(_listed(at))
        at_least = At.of(_listed(fresh_at_least), "fresh_at_least")
        if door.places and (fresh or at_least):
            raise FluvialError("at and fresh: tables are read as of an offset or up to the newest, not both")
        with self._freshness(at_least) if fresh or at_least else nullcontext() as door.fresh:
            told = door.answer(bound(statement, values), take, again=found.clear)
        return Result(found[-1], told)

    def changes(self, table: str, *, since: int, until: int | None = None) -> Iterator[Change]:
        """
        What became of each key of a table after version `since`, up to `until` or the newest.

        Only files that are not in both versions are read. Raises :class:`fluvial.errors.FluvialError` for a version
        that can no longer be read, and a table whose key is not known.
        """
        path = self._warehouse().table(table).path
        old, new = (Source(name=table, path=path, snapshot=_snapshot(path, version)) for version in (since, until))
        key = tuple((self._keys or {}).get(table, ())) or key_columns(table, path, new.snapshot)
        if not key:
            raise BadKeyError(f"which columns tell the rows of {table} apart is not known: connect(keys=…) says it")
        found = compare(old, new, key, ignored=INTERNAL_COLUMNS)
        for removed, at in found.removed.items():
            yield Change(kind="removed", key=removed, before=_row(found.before, at), after=None)
        for added, at in found.added.items():
            yield Change(kind="added", key=added, before=None, after=_row(found.after, at))
        for changed, (at, at_new, _) in found.changed.items():
            yield Change(kind="changed", key=changed, before=_row(found.before, at), after=_row(found.after, at_new))

    def close(self) -> None:
        """
        End the engines.
        """
        if self._door is not None:
            self._door.close()
            self._door = None
        if self._served is not None:
            self._served.close()
            self._served = None
        if self._spark is not None and self._stops_spark:
            self._spark.stop()
        self._spark = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _warehouse(self) -> ServedWarehouse:
        if self._served is None:
            self._served = ServedWarehouse(self.settings.warehouse, keys=self._keys)
        return self._served

    def _opened(self) -> Door:
        if self._door is None:
            self._door = Door(
                settings=self.settings,
                ask_spark=self._ask_spark,
                say=_log.info,
                engine=Engine.AUTO,
                as_of=self._as_of,
            )
        return self._door

    def _freshness(self, at_least: Sequence[At]) -> AbstractContextManager[Fresh]:
        from fluvial.fresh.freshness import opened

        return opened(self.settings, at_least)

    def _as_of(self, table: str, places: Sequence[At]) -> Version:
        from fluvial.fresh.freshness import made_as_of

        return made_as_of(self.settings, table, places)

    def _ask_spark(self, statement: str) -> Any:
        from fluvial.spark.session import build_session, register_tables, run_sql

        if self._spark is None:
            with needed():
                from pyspark.sql import SparkSession
            # A session that the program has of its own is not ours to stop.
            self._stops_spark = SparkSession.getActiveSession() is None
            self._spark = build_session(self.settings, "fluvial.connect")
        else:
            register_tables(self._spark, self.settings)
        return run_sql(self._spark, self.settings, statement)


def _listed(words: str | Sequence[str]) -> Sequence[str]:
    return [words] if isinstance(words, str) else words


def _snapshot(path: str, version: int | None) -> Any:
    found = read_snapshot(path, version)
    if found is None:
        raise FluvialError(f"{path} holds no table")
    return found


def _row(rows: "pa.Table", at: int) -> Row:
    (values,) = rows_of(rows.slice(at, 1).combine_chunks().to_batches())
    return dict(zip(rows.column_names, values, strict=True))


def _parameter(name: str, value: Any) -> tuple[str, str]:
    """A value of Python's as `fluvial sql --param` takes it."""
    kind, text = "", str(value)
    match value:
        case str():
            return name, value
        case bool():
            kind, text = "boolean", text.lower()
        case int():
            kind = "int" if -_INT_MAX <= value < _INT_MAX else "bigint"
        case float():
            kind, text = "double", repr(value)
        case Decimal() if value.is_finite():
            _, digits, exponent = value.as_tuple()
            scale = max(0, -int(exponent))
            kind, text = f"decimal({max(len(digits) + max(int(exponent), 0), scale)},{scale})", f"{value:f}"
        case dt.datetime():
            utc = value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value
            kind, text = "timestamp", f"{utc.isoformat(sep=' ')}Z"
        case dt.date():
            kind = "date"
        case _:
            raise StatementError(f"parameter {name} is {type(value).__name__}, which is no value of a query")
    return f"{name}:{kind}", text
