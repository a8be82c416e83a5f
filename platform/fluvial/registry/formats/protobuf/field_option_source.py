"""
The options of a field in a .proto text: its default value, its name in JSON, and any other.
"""

from google.protobuf import descriptor_pb2 as pb

from fluvial.registry.formats.protobuf.option_source import OptionReader
from fluvial.registry.formats.protobuf.tokens import Tokens, whole_value

Field = pb.FieldDescriptorProto


def read_field_options(
    tokens: Tokens, options: OptionReader, field: pb.FieldDescriptorProto, *, is_proto3: bool
) -> None:
    """Read the options in brackets behind a field, if there are any. Raises `SchemaSyntaxError`."""
    if not tokens.skip("["):
        return
    while True:
        if tokens.at("default") and tokens.after_next.text == "=":
            tokens.take()
            tokens.take()
            _read_default(tokens, field, is_proto3=is_proto3)
        elif tokens.at("json_name") and tokens.after_next.text == "=":
            tokens.take()
            tokens.take()
            field.json_name = tokens.string("the name in JSON")
        else:
            options.option(field.options)
        if tokens.skip("]"):
            return
        tokens.expect(",")


def _read_default(tokens: Tokens, field: pb.FieldDescriptorProto, *, is_proto3: bool) -> None:
    if is_proto3:
        raise tokens.error("proto3 has no default values")
    kind = field.type if field.HasField("type") else None
    if kind == Field.TYPE_STRING:
        field.default_value = tokens.string("a string")
    elif kind == Field.TYPE_BYTES:
        field.default_value = "".join(
            chr(each) if 32 <= each < 127 and each not in b"\"\\'" else _octal(each)
            for each in tokens.strings("a string")
        )
    elif kind is None or kind == Field.TYPE_BOOL:
        field.default_value = tokens.word("a value")
    elif kind in {Field.TYPE_DOUBLE, Field.TYPE_FLOAT}:
        field.default_value = _real(tokens)
    else:
        field.default_value = str(tokens.whole("a whole number"))


def _real(tokens: Tokens) -> str:
    sign = "-" if tokens.skip("-") else ""
    if tokens.at("inf") or tokens.at("nan"):
        return sign + tokens.take().text
    if tokens.next.kind not in {"real", "whole"}:
        raise tokens.error("expected a number")
    token = tokens.take()
    number = float(whole_value(token.text)) if token.kind == "whole" else float(token.text.rstrip("fF"))
    return sign + (f"{number:.0f}" if number.is_integer() and number < 1e15 else repr(number))


def _octal(byte: int) -> str:
    return f"\\{byte:03o}"
