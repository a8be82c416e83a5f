"""
What Flight SQL tells of a server and its tables, as the tables that its commands are answered with.

Their columns are those that `format/FlightSql.proto` of Apache Arrow gives for each command.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import pyarrow as pa
import re2

from fluvial.serve.errors import BadRequestError
from fluvial.serve.statements import CATALOG

TABLE = "TABLE"
_PATTERN_MAX = 1_000


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


_TEXT, _INT = pa.string(), pa.int32()
_PLACE = [pa.field("catalog_name", _TEXT), pa.field("db_schema_name", _TEXT)]
_TABLES = [*_PLACE, _required("table_name", _TEXT), _required("table_type", _TEXT)]
_FOREIGN = [
    *(
        field
        for side in ("pk", "fk")
        for field in (
            pa.field(f"{side}_catalog_name", _TEXT),
            pa.field(f"{side}_db_schema_name", _TEXT),
            _required(f"{side}_table_name", _TEXT),
            _required(f"{side}_column_name", _TEXT),
        )
    ),
    _required("key_sequence", _INT),
    pa.field("fk_key_name", _TEXT),
    pa.field("pk_key_name", _TEXT),
    _required("update_rule", pa.uint8()),
    _required("delete_rule", pa.uint8()),
]
_TYPES = [
    _required("type_name", _TEXT),
    _required("data_type", _INT),
    pa.field("column_size", _INT),
    pa.field("literal_prefix", _TEXT),
    pa.field("literal_suffix", _TEXT),
    pa.field("create_params", pa.list_(_required("item", _TEXT))),
    _required("nullable", _INT),
    _required("case_sensitive", pa.bool_()),
    _required("searchable", _INT),
    pa.field("unsigned_attribute", pa.bool_()),
    _required("fixed_prec_scale", pa.bool_()),
    pa.field("auto_increment", pa.bool_()),
    pa.field("local_type_name", _TEXT),
    pa.field("minimum_scale", _INT),
    pa.field("maximum_scale", _INT),
    _required("sql_data_type", _INT),
    pa.field("datetime_subcode", _INT),
    pa.field("num_prec_radix", _INT),
    pa.field("interval_precision", _INT),
]
_VALUES = {
    "string_value": _TEXT,
    "bool_value": pa.bool_(),
    "bigint_value": pa.int64(),
    "int32_bitmask": _INT,
    "string_list": pa.list_(_TEXT),
    "int32_to_int32_list_map": pa.map_(_INT, pa.list_(_INT)),
}
_INFO = [
    _required("info_name", pa.uint32()),
    _required("value", pa.dense_union([pa.field(name, kind) for name, kind in _VALUES.items()])),
]

SCHEMAS: Mapping[str, pa.Schema] = {
    "CommandGetCatalogs": pa.schema([_required("catalog_name", _TEXT)]),
    "CommandGetDbSchemas": pa.schema([_PLACE[0], _required("db_schema_name", _TEXT)]),
    "CommandGetTables": pa.schema(_TABLES),
    "CommandGetTableTypes": pa.schema([_required("table_type", _TEXT)]),
    "CommandGetPrimaryKeys": pa.schema(
        [
            *_PLACE,
            _required("table_name", _TEXT),
            _required("column_name", _TEXT),
            pa.field("key_name", _TEXT),
            _required("key_sequence", _INT),
        ]
    ),
    "CommandGetExportedKeys": pa.schema(_FOREIGN),
    "CommandGetImportedKeys": pa.schema(_FOREIGN),
    "CommandGetCrossReference": pa.schema(_FOREIGN),
    "CommandGetXdbcTypeInfo": pa.schema(_TYPES),
    "CommandGetSqlInfo": pa.schema(_INFO),
}
"""The columns of each answer; with schemas, tables have one more."""
WITH_SCHEMAS = pa.schema([*_TABLES, _required("table_schema", pa.binary())])


def schema_of(name: str, command: Any) -> pa.Schema:
    """
    The columns of the answer to a command of `SCHEMAS`.
    """
    return WITH_SCHEMAS if name == "CommandGetTables" and command.include_schema else SCHEMAS[name]


def table_of(schema: pa.Schema, rows: Iterable[Sequence[Any]]) -> pa.Table:
    """
    Rows as the table that is sent.
    """
    found = list(rows)
    return pa.table([pa.array([row[at] for row in found], field.type) for at, field in enumerate(schema)], schema)


def databases(tables: Iterable[str], command: Any) -> list[str]:
    """
    The databases of tables that a command means. Raises :class:`BadRequestError`.
    """
    if not _of_catalog(command):
        return []
    fits = _like(command, "db_schema_filter_pattern")
    return sorted({database for database in (name.partition(".")[0] for name in tables) if fits(database)})


def tables_of(tables: Iterable[str], command: Any) -> list[str]:
    """
    The tables that a CommandGetTables means. Raises :class:`BadRequestError`.
    """
    if command.table_types and TABLE not in command.table_types:
        return []
    wanted = set(databases(tables, command))
    fits = _like(command, "table_name_filter_pattern")
    parts = ((name, *name.split(".", 1)) for name in sorted(tables))
    return [name for name, database, table in parts if database in wanted and fits(table)]


def keyed(tables: Iterable[str], command: Any) -> list[str]:
    """
    The tables that a CommandGetPrimaryKeys means.
    """
    if not _of_catalog(command):
        return []
    databases = (command.db_schema,) if command.HasField("db_schema") else None
    parts = ((name, *name.split(".", 1)) for name in tables)
    return [
        name for name, database, table in parts if table == command.table and (not databases or database in databases)
    ]


def told(wanted: Sequence[int]) -> pa.Table:
    """
    What the server says of itself; nothing wanted is everything.
    """
    found = {code: value for code, value in _info().items() if not wanted or code in wanted}
    names = [*_VALUES]
    children: list[list[Any]] = [[] for _ in names]
    types, offsets = [], []
    for value in found.values():
        kind = names.index({bool: "bool_value", int: "int32_bitmask"}.get(type(value), "string_value"))
        types.append(kind)
        offsets.append(len(children[kind]))
        children[kind].append(value)
    values = pa.UnionArray.from_dense(
        pa.array(types, pa.int8()),
        pa.array(offsets, pa.int32()),
        [pa.array(each, kind) for each, kind in zip(children, _VALUES.values(), strict=True)],
        names,
    )
    return pa.table([pa.array(found, pa.uint32()), values], schema=SCHEMAS["CommandGetSqlInfo"])


def _info() -> dict[int, str | bool | int]:
    """By the numbers of the enum SqlInfo."""
    return {
        0: "fluvial",  # name, version, version of Arrow
        1: version("fluvial"),
        2: pa.__version__,
        3: True,  # is read only
        4: True,  # takes SQL
        5: False,  # takes Substrait
        8: 0,  # has no transactions
        9: False,  # takes no CancelQuery: who hangs up cancels
        500: False,  # neither makes nor drops catalogs, schemas, tables
        501: False,
        502: False,
        503: 1,  # names are compared whatever their case
        504: "`",
        505: 1,
        506: True,  # all tables may be selected from
        513: "\\",
        529: "database",
        531: "catalog",
        532: True,  # the catalog stands before the table
    }


def _of_catalog(command: Any) -> bool:
    return not command.HasField("catalog") or command.catalog == CATALOG


def _like(command: Any, name: str) -> Callable[[str], bool]:
    """Whether a name fits the pattern of a field, in which `%` is any characters, `_` one, and a backslash quotes."""
    if not command.HasField(name):
        return lambda text: True
    pattern = getattr(command, name)
    if len(pattern) > _PATTERN_MAX:
        raise BadRequestError(f"{name} has at most {_PATTERN_MAX} characters")
    parts, at = [], 0
    while at < len(pattern):
        mark = pattern[at]
        if mark == "\\" and at + 1 < len(pattern):
            at += 1
            parts.append(re2.escape(pattern[at]))
        else:
            parts.append({"%": ".*", "_": "."}.get(mark) or re2.escape(mark))
        at += 1
    # RE2 takes no longer for a pattern that is made to take long.
    compiled = re2.compile(f"(?s){''.join(parts)}")
    return lambda text: compiled.fullmatch(text) is not None
