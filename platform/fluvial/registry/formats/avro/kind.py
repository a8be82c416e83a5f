"""Avro as a kind of schema that the registry keeps."""

from collections.abc import Callable, Mapping

from fluvial.registry.formats.avro import parse, skip
from fluvial.registry.formats.avro import text as avro_text
from fluvial.registry.formats.avro.compatibility import Difference, Fault, differences
from fluvial.registry.formats.avro.compiled_skip import compiled_skip
from fluvial.registry.formats.avro.types import Primitive, Record, Union
from fluvial.registry.formats.schema_kind import Parsed, Steps, TooComplexError

SENTENCES = {
    Fault.FIXED_SIZE_MISMATCH: "The size of FIXED type field at path '{path}' in the {reader} schema does not match "
    "with the {writer} schema",
    Fault.TYPE_MISMATCH: "The type (path '{path}') of a field in the {reader} schema does not match with the {writer} "
    "schema",
    Fault.NAME_MISMATCH: "The name of the schema has changed (path '{path}')",
    Fault.MISSING_ENUM_SYMBOLS: "The {reader} schema is missing enum symbols '{detail}' at path '{path}' in the "
    "{writer} schema",
    Fault.MISSING_UNION_BRANCH: "The {reader} schema is missing a type inside a union field at path '{path}' in the "
    "{writer} schema",
    Fault.READER_FIELD_MISSING_DEFAULT_VALUE: "The field '{detail}' at path '{path}' in the {reader} schema has no "
    "default value and is missing in the {writer} schema",
}


class AvroKind:
    """See `SchemaKind`."""

    name = "AVRO"

    def parse(self, text: str, *, references: Mapping[str, str], normalize: bool) -> Parsed:
        return parse.parse(text, references=tuple(references.values()), normalize=normalize)

    def formatted(self, parsed: Parsed, form: str) -> str | None:
        """`resolved` spells out what the schema refers to."""
        try:
            return avro_text.canonical(parsed.schema) if form == "resolved" else None
        except RecursionError:
            raise TooComplexError("the types are nested too deeply to be spelled out") from None

    def faults(
        self, *, reader: Parsed, writer: Parsed, reader_word: str, writer_word: str, steps: Steps | None = None
    ) -> list[str]:
        found = differences(reader.schema, writer.schema, steps)
        return [_message(each, reader_word, writer_word) for each in found]

    def compile_check(self, parsed: Parsed) -> Callable[[bytes, int], None]:
        return skip.compile_check(parsed.schema)

    def compile_skip(self, parsed: Parsed) -> skip.Skip:
        """See `SkippableKind`."""
        return compiled_skip(parsed.schema) or skip.compile_skip(parsed.schema)

    def takes_null(self, parsed: Parsed) -> bool:
        """Whether the schema is null or a union with it."""
        schema = parsed.schema
        branches = schema.branches if isinstance(schema, Union) else (schema,)
        return any(isinstance(branch, Primitive) and branch.kind == "null" for branch in branches)

    def key_field(self, parsed: Parsed) -> str | None:
        """See `SkippableKind`."""
        named = parsed.schema.props.get("fluvial.key") if isinstance(parsed.schema, Record) else None
        return named if isinstance(named, str) and named else None

    def record_name(self, parsed: Parsed) -> str | None:
        return parsed.schema.name.full if isinstance(parsed.schema, Record) else None


def _message(difference: Difference, reader: str, writer: str) -> str:
    description = SENTENCES[difference.fault].format(
        path=difference.path, detail=difference.detail, reader=reader, writer=writer
    )
    return f"{{errorType:'{difference.fault}', description:'{description}', additionalInfo:'{difference.detail}'}}"
