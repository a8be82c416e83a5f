"""The kinds of schema that the registry keeps, in the order in which `/schemas/types` names them."""

from fluvial.registry import errors
from fluvial.registry.formats.avro.kind import AvroKind
from fluvial.registry.formats.json_schema.kind import JsonSchemaKind
from fluvial.registry.formats.protobuf.kind import ProtobufKind
from fluvial.registry.formats.schema_kind import SchemaKind

DEFAULT_KIND = "AVRO"
KINDS: dict[str, SchemaKind] = {each.name: each for each in (JsonSchemaKind(), ProtobufKind(), AvroKind())}


def kind_of(schema_type: str) -> SchemaKind:
    """The kind of a `schemaType`. Raises `RefusedError` for one that is not kept."""
    kind = KINDS.get(schema_type)
    if kind is None:
        raise errors.unsupported_type(schema_type, KINDS)
    return kind
