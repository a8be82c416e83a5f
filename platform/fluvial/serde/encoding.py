"""Records on the wire of a schema registry's clients: a zero byte, the schema's id in four, then Avro."""

import io
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluvial.errors import FluvialError
from fluvial.serde.avro_json import MismatchError, convert, named_types, render
from fluvial.serde.avro_text import value_of_text

if TYPE_CHECKING:
    from fluvial.registry.client import RegistryClient

PREFIX = struct.Struct(">bI")
"""The magic byte 0 and the schema id."""

NOT_FOUND_CODE = 40403


class EncodingError(FluvialError):
    """A value does not fit its schema, or a schema is not what was asked for."""


class Encoder:
    """Writes JSON values as Avro under one registered schema."""

    def __init__(self, schema_id: int, text: str) -> None:
        import fastavro

        self.schema_id = schema_id
        self._schema = fastavro.parse_schema(json.loads(text))
        self._named = named_types(self._schema)
        self._prefix = PREFIX.pack(0, schema_id)

    @property
    def key_field(self) -> str | None:
        """The field of a value that is the record's key by the schema's `"fluvial.key"`; None where it has no such."""
        if not isinstance(self._schema, dict):
            return None
        named = self._schema.get("fluvial.key")
        return named if named in {field["name"] for field in self._schema.get("fields", ())} else None

    @classmethod
    def of(cls, registry: "RegistryClient", *, topic: str, subject: str | None, schema: Path | None) -> "Encoder":
        """
        Take the latest schema of a subject, or the one in a file, which must be registered under the subject.

        The subject is `<topic>-value` unless given. Raises EncodingError or RegistryError.
        """
        subject = subject or f"{topic}-value"
        if schema is None:
            latest = registry.latest(subject)
            return cls(latest.id, latest.schema)
        text = read_schema(schema)
        known = registry.look_up(subject, text)
        if known is None:
            raise EncodingError(
                f"{schema}: not registered under subject {subject}; register it first with "
                f"`fluvial schema register {schema} --subject {subject}`"
            )
        return cls(known.id, text)

    @property
    def fields(self) -> frozenset[str]:
        """The names of the fields; none where the schema is no record."""
        if not isinstance(self._schema, dict):
            return frozenset()
        return frozenset(field["name"] for field in self._schema.get("fields", ()))

    def of_texts(self, row: Mapping[str, str]) -> dict[str, Any]:
        """Return a row of texts as the JSON value of the record; a field that the schema lacks stays a text."""
        types = {field["name"]: field["type"] for field in self._schema.get("fields", ())} if self.fields else {}
        return {
            name: value_of_text(types[name], text, self._named) if name in types else text for name, text in row.items()
        }

    def encode(self, value: Any) -> bytes:
        """Return the framed bytes of a JSON value; raises EncodingError that names the field."""
        import fastavro

        out = io.BytesIO()
        out.write(self._prefix)
        try:
            fastavro.schemaless_writer(out, self._schema, convert(self._schema, value))
        except MismatchError as error:
            raise EncodingError(str(error)) from error
        except (ValueError, TypeError, OverflowError) as error:
            raise EncodingError(f"does not fit schema {self.schema_id}: {error}") from error
        return out.getvalue()


class Decoder:
    """Reads framed values with the schemas that they name, each asked of the registry once."""

    def __init__(self, registry: "RegistryClient", reader: str | None = None) -> None:
        import fastavro

        self._registry = registry
        self._reader = None if reader is None else fastavro.parse_schema(json.loads(reader))
        self._writers: dict[int, Any] = {}

    def decode(self, payload: bytes) -> tuple[int, Any] | None:
        """
        Return the schema id and the value as JSON, None for a payload that is not framed.

        Raises EncodingError for one that is framed and cannot be read, RegistryError when the registry is needed and
        does not answer.
        """
        if len(payload) < PREFIX.size or payload[0] != 0:
            return None
        import fastavro

        _, schema_id = PREFIX.unpack_from(payload)
        writer = self._writer(schema_id)
        body = io.BytesIO(payload)
        body.seek(PREFIX.size)
        try:
            value = fastavro.schemaless_reader(body, writer, self._reader)
        except Exception as error:
            # Damaged bytes raise whatever the decoder happened to do with them.
            raise EncodingError(f"does not decode under schema {schema_id}: {error!r}") from error
        if body.read(1):
            raise EncodingError(f"has bytes left over after its value under schema {schema_id}")
        return schema_id, render(value)

    def _writer(self, schema_id: int) -> Any:
        import fastavro

        from fluvial.registry.errors import RegistryError

        if schema_id not in self._writers:
            try:
                text = self._registry.schema_by_id(schema_id)
            except RegistryError as error:
                if error.code != NOT_FOUND_CODE:
                    raise
                raise EncodingError(f"schema id {schema_id} is not in the registry at {self._registry.url}") from error
            self._writers[schema_id] = fastavro.parse_schema(json.loads(text))
        return self._writers[schema_id]


def read_schema(path: Path) -> str:
    """Return the text of an Avro schema file; raises EncodingError when it is none."""
    from fluvial.registry.formats.avro.parse import AvroSyntaxError, parse

    try:
        text = path.read_text(encoding="utf-8")
        parse(text)
    except OSError as error:
        raise EncodingError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise EncodingError(f"{path}: not UTF-8 text") from error
    except AvroSyntaxError as error:
        raise EncodingError(f"{path}: not an Avro schema: {error}") from error
    return text
