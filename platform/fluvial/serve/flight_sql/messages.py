"""
The messages of Flight SQL that this server reads and writes, as `format/FlightSql.proto` of Apache Arrow numbers them.

They are made from the table below when they are first asked for; fields that it does not name are left alone.
"""

from functools import cache
from typing import Any

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from fluvial.serve.errors import BadRequestError, TooLargeError

PACKAGE = "arrow.flight.protocol.sql"
BYTES_MAX = 1 << 20
_URL = f"type.googleapis.com/{PACKAGE}."

# Each field: name, number, and its type; `?` where it is told apart from one that is not given, `*` for several.
_FIELDS: dict[str, str] = {
    "CommandGetSqlInfo": "info:1:uint32*",
    "CommandGetXdbcTypeInfo": "data_type:1:int32?",
    "CommandGetCatalogs": "",
    "CommandGetDbSchemas": "catalog:1:string? db_schema_filter_pattern:2:string?",
    "CommandGetTables": (
        "catalog:1:string? db_schema_filter_pattern:2:string? table_name_filter_pattern:3:string? "
        "table_types:4:string* include_schema:5:bool"
    ),
    "CommandGetTableTypes": "",
    "CommandGetPrimaryKeys": "catalog:1:string? db_schema:2:string? table:3:string",
    "CommandGetExportedKeys": "catalog:1:string? db_schema:2:string? table:3:string",
    "CommandGetImportedKeys": "catalog:1:string? db_schema:2:string? table:3:string",
    "CommandGetCrossReference": "pk_table:3:string fk_table:6:string",
    "CommandStatementQuery": "query:1:string transaction_id:2:bytes?",
    "CommandPreparedStatementQuery": "prepared_statement_handle:1:bytes",
    "TicketStatementQuery": "statement_handle:1:bytes",
    "DoPutPreparedStatementResult": "prepared_statement_handle:1:bytes?",
    "ActionCreatePreparedStatementRequest": "query:1:string transaction_id:2:bytes?",
    "ActionCreatePreparedStatementResult": (
        "prepared_statement_handle:1:bytes dataset_schema:2:bytes parameter_schema:3:bytes"
    ),
    "ActionClosePreparedStatementRequest": "prepared_statement_handle:1:bytes",
}


def packed(name: str, **fields: Any) -> bytes:
    """
    A message in the `Any` in which Flight SQL sends it.
    """
    value = message(name, **fields).SerializeToString()
    return bytes(any_pb2.Any(type_url=f"{_URL}{name}", value=value).SerializeToString())


def message(name: str, **fields: Any) -> Any:
    """
    A message of the table.
    """
    return _classes()[name](**fields)


def unpacked(body: bytes) -> tuple[str, Any]:
    """
    The name of a message that came in an `Any`, and the message: None for one that is not of the table.

    Raises :class:`BadRequestError` and :class:`TooLargeError`.
    """
    if len(body) > BYTES_MAX:
        raise TooLargeError(f"a command has at most {BYTES_MAX} bytes")
    try:
        wrapped = any_pb2.Any.FromString(body)
        if not wrapped.type_url.startswith(_URL):
            raise BadRequestError("this is no command of Flight SQL")
        name = wrapped.type_url.removeprefix(_URL)
        made = _classes().get(name)
        return name[:100], None if made is None else made.FromString(wrapped.value)
    except DecodeError as error:
        raise BadRequestError("the command cannot be read: it is no message of Flight SQL") from error


@cache
def _classes() -> dict[str, type[Message]]:
    file = descriptor_pb2.FileDescriptorProto(name="flight_sql.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _FIELDS.items():
        made = file.message_type.add(name=name)
        for each in fields.split():
            _add_field(made, *each.split(":"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in _FIELDS}


def _add_field(made: Any, name: str, number: str, kind: str) -> None:
    kinds = descriptor_pb2.FieldDescriptorProto
    field = made.field.add(
        name=name,
        number=int(number),
        type=kinds.Type.Value(f"TYPE_{kind.rstrip('?*').upper()}"),
        label=kinds.LABEL_REPEATED if kind.endswith("*") else kinds.LABEL_OPTIONAL,
    )
    if kind.endswith("?"):
        # How proto3 keeps whether a field was given.
        field.proto3_optional = True
        field.oneof_index = len(made.oneof_decl)
        made.oneof_decl.add(name=f"_{name}")
