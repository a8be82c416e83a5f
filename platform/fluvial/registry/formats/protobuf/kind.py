"""Protobuf as a kind of schema that the registry keeps; what knows it is imported when the first one comes by."""

from collections.abc import Callable, Mapping

from fluvial.registry.formats.json_schema.kind import refuse_payload
from fluvial.registry.formats.schema_kind import Parsed, Steps


class ProtobufKind:
    """See `SchemaKind`."""

    name = "PROTOBUF"

    def parse(self, text: str, *, references: Mapping[str, str], normalize: bool) -> Parsed:
        from fluvial.registry.formats.protobuf.parse import parse

        return parse(text, references=references, normalize=normalize)

    def formatted(self, parsed: Parsed, form: str) -> str | None:
        """`serialized` is the base64 of the `FileDescriptorProto`."""
        from fluvial.registry.formats.protobuf.parse import serialized

        return serialized(parsed.schema) if form == "serialized" else None

    def faults(
        self, *, reader: Parsed, writer: Parsed, reader_word: str, writer_word: str, steps: Steps | None = None
    ) -> list[str]:
        from fluvial.registry.formats.protobuf.compatibility import differences, sentence

        found = differences(reader.schema, writer.schema, steps)
        return [sentence(each, reader=reader_word, writer=writer_word) for each in found]

    def compile_check(self, parsed: Parsed) -> Callable[[bytes, int], None]:
        """Refuse: nearly any bytes decode as nearly any message, so decoding would show nothing."""
        return refuse_payload(self.name)
