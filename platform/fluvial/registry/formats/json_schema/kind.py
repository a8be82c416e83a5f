"""JSON Schema as a kind of schema that the registry keeps; what knows it is imported when the first one comes by."""

from collections.abc import Callable, Mapping

from fluvial.registry.formats.schema_kind import Parsed, Steps, UndecodableError


class JsonSchemaKind:
    """See `SchemaKind`."""

    name = "JSON"

    def parse(self, text: str, *, references: Mapping[str, str], normalize: bool) -> Parsed:
        from fluvial.registry.formats.json_schema.parse import parse

        return parse(text, references=references, normalize=normalize)

    def formatted(self, parsed: Parsed, form: str) -> str | None:
        """There is no other form than the stored one."""
        return None

    def faults(
        self, *, reader: Parsed, writer: Parsed, reader_word: str, writer_word: str, steps: Steps | None = None
    ) -> list[str]:
        from fluvial.registry.formats.json_schema.compatibility import differences
        from fluvial.registry.formats.json_schema.difference import sentence

        found = differences(reader.schema, writer.schema, steps)
        return [sentence(each, reader=reader_word, writer=writer_word) for each in found]

    def compile_check(self, parsed: Parsed) -> Callable[[bytes, int], None]:
        """Refuse: validating JSON value by value takes time that a broker has not."""
        return refuse_payload(self.name)


def refuse_payload(schema_type: str) -> Callable[[bytes, int], None]:
    """The check of payloads that are not checked: a record must not pass for checked that is not."""

    def refuse(payload: bytes, start: int) -> None:
        raise UndecodableError(
            f"payloads are checked for AVRO only and this schema is {schema_type}; "
            "set the topic's schema.validation to id"
        )

    return refuse
