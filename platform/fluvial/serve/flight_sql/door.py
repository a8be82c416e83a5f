"""
What Flight SQL's commands are answered with: by the statements and the tables of a server, in its event loop.
"""

from collections.abc import Callable, Coroutine
from typing import Any

import pyarrow as pa

from fluvial.query.answers import Format
from fluvial.query.engine import Told
from fluvial.query.references import quoted
from fluvial.serve.errors import (
    BusyError,
    NoKeyError,
    RefusedStatementError,
    ServeError,
    StatementFailedError,
    TookTooLongError,
    UnreadableError,
)
from fluvial.serve.exposition import Metrics
from fluvial.serve.flight_sql import catalog
from fluvial.serve.flight_sql.handles import Handle
from fluvial.serve.service import Asked as AskedRows
from fluvial.serve.service import Service
from fluvial.serve.sql import Asked, Statements
from fluvial.serve.statements import CATALOG

Gone = Callable[[], Coroutine[Any, Any, None]]
"""Returns when nobody waits for the answer any more."""

_PASSING = (BusyError, TookTooLongError, UnreadableError)


class FlightDoor:
    """
    Takes commands; without statements it answers about tables alone.
    """

    def __init__(self, service: Service, statements: Statements | None, metrics: Metrics) -> None:
        self._service = service
        self._statements = statements
        self._metrics = metrics
        self._schemas: dict[str, tuple[tuple[int, int, int] | None, pa.Schema]] = {}

    async def schema(self, handle: Handle, gone: Gone) -> pa.Schema:
        """
        The columns of the answer to a statement, which is not made. Raises :class:`~fluvial.serve.errors.ServeError`.
        """
        table, _ = await self._read(handle, gone, columns_only=True)
        return table.schema

    async def prepared(self, handle: Handle, gone: Gone) -> pa.Schema | None:
        """
        As :meth:`schema`, whatever the values will be; None where it depends on them.
        """
        try:
            return await self.schema(handle.without_values(), gone)
        except (StatementFailedError, RefusedStatementError):
            if not handle.parameters:
                raise
            return None

    async def table(self, handle: Handle, gone: Gone) -> tuple[pa.Table, Told]:
        """
        The answer to a statement. Raises :class:`~fluvial.serve.errors.ServeError`.
        """
        with self._metrics.counted("flight"):
            return await self._read(handle, gone, columns_only=False)

    async def metadata(self, name: str, command: Any, gone: Gone) -> pa.Table:
        """
        The answer to a command of :data:`catalog.SCHEMAS`. Raises :class:`~fluvial.serve.errors.ServeError`.
        """
        schema = catalog.schema_of(name, command)
        match name:
            case "CommandGetSqlInfo":
                return catalog.told(command.info)
            case "CommandGetCatalogs":
                rows: list[tuple[Any, ...]] = [(CATALOG,)]
            case "CommandGetTableTypes":
                rows = [(catalog.TABLE,)]
            case "CommandGetDbSchemas":
                rows = [(CATALOG, each) for each in catalog.databases(await self._names(), command)]
            case "CommandGetTables":
                rows = await self._tables(command, gone)
            case "CommandGetPrimaryKeys":
                rows = await self._keys(command)
            case _:
                rows = []
        return catalog.table_of(schema, rows)

    async def _read(self, handle: Handle, gone: Gone, *, columns_only: bool) -> tuple[pa.Table, Told]:
        if self._statements is None:
            raise RefusedStatementError(
                "this server answers no statements: Sail is not installed, or no local warehouse"
            )
        reading = handle.reading
        asked = Asked(
            statement=handle.text,
            format=Format.ARROW_STREAM,
            places=reading.places,
            fresh=reading.fresh,
            at_least=reading.least,
            columns_only=columns_only,
        )
        body, told = await self._statements.answer(asked, gone)
        table = pa.ipc.open_stream(body).read_all()
        # What a plan says of nulls and what an answer says differs, and clients compare the two.
        return table.cast(_nullable(table.schema)), told

    async def _names(self) -> list[str]:
        return await self._service.follower.in_thread(lambda: self._service.names)

    async def _tables(self, command: Any, gone: Gone) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for name in catalog.tables_of(await self._names(), command):
            database, _, table = name.partition(".")
            row = (CATALOG, database, table, catalog.TABLE)
            rows.append(
                (*row, (await self._schema_of(name, gone)).serialize().to_pybytes()) if command.include_schema else row
            )
        return rows

    async def _schema_of(self, name: str, gone: Gone) -> pa.Schema:
        """What `select *` gives of a table; nothing of one that cannot be read."""
        newest = await self._service.follower.in_thread(lambda: self._service.table(name).mark())
        known = self._schemas.get(name)
        if known is not None and known[0] == newest:
            return known[1]
        statement = f"SELECT * FROM {'.'.join(map(quoted, name.split('.', 1)))}"
        try:
            schema = await self.schema(Handle(statement=statement), gone)
        except _PASSING:
            raise
        except ServeError:
            schema = pa.schema([])
        self._schemas[name] = newest, schema
        return schema

    async def _keys(self, command: Any) -> list[tuple[Any, ...]]:
        rows = []
        for name in catalog.keyed(await self._names(), command):
            try:
                view = await self._service.view(self._service.table(name), AskedRows())
            except NoKeyError:
                continue
            place = (CATALOG, *name.split(".", 1))
            rows += [(*place, column, None, at) for at, column in enumerate(view.key.columns, 1)]
        return rows


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([_field(each) for each in schema])


def _field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _kind(field.type))


def _kind(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([_field(each) for each in kind])
    if types.is_list(kind):
        return pa.list_(_field(kind.value_field))
    if types.is_map(kind):
        return pa.map_(_kind(kind.key_type), _field(kind.item_field))
    return kind
