"""
Options that extensions define, in a descriptor that was serialized with them set: as text, as .proto has them.

A descriptor that is read without knowing the extensions has their bytes; with the file that defines them at hand, which
the schema imports or is itself, the bytes have names and values again.
"""

from collections.abc import Iterator
from typing import Any

from google.protobuf import descriptor_pb2 as pb
from google.protobuf import text_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from fluvial.registry.formats.protobuf.tokens import Tokens


def spell_out(file: pb.FileDescriptorProto, pool: DescriptorPool) -> None:
    """Replace the options of `file` that only `pool` knows by uninterpreted ones."""
    try:
        known = pool.FindMessageTypeByName(file.DESCRIPTOR.full_name)
    except KeyError:
        return  # nothing imports descriptor.proto, so nothing extends an option
    informed = GetMessageClass(known).FromString(file.SerializeToString())
    for plain, options in _options_of(file, informed):
        for field, value in options.ListFields():
            if field.is_extension:
                values = value if field.is_repeated else [value]
                for each in values:
                    _set(plain.uninterpreted_option.add(), field, each)
        for field, _ in plain.ListFields():
            if field.is_extension:
                plain.ClearExtension(field)
        plain.DiscardUnknownFields()


def one_line(message: Any) -> str:
    """A message's text with one blank between its words."""
    tokens = Tokens(text_format.MessageToString(message, as_one_line=True))
    words: list[str] = []
    while tokens.next.kind != "end":
        words.append(tokens.take().text)
    return " ".join(words)


def _options_of(plain: Any, informed: Any) -> Iterator[tuple[Any, Any]]:
    """The options of two readings of one descriptor, pair by pair."""
    waiting = [(plain, informed)]
    while waiting:
        one, other = waiting.pop()
        for field, value in one.ListFields():
            if field.message_type is None or field.is_extension:
                continue
            further = getattr(other, field.name)
            if field.name == "options":
                yield value, further
            elif field.is_repeated:
                waiting += zip(value, further, strict=True)
            else:
                waiting.append((value, further))


def _set(found: pb.UninterpretedOption, field: Any, value: Any) -> None:
    found.name.add(name_part=field.full_name, is_extension=True)
    if field.message_type is not None:
        found.aggregate_value = one_line(value)
    elif field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        found.identifier_value = known.name if known is not None else str(value)
    elif isinstance(value, bool):
        found.identifier_value = "true" if value else "false"
    elif isinstance(value, int):
        if value < 0:
            found.negative_int_value = value
        else:
            found.positive_int_value = value
    elif isinstance(value, float):
        found.double_value = value
    else:
        found.string_value = value.encode() if isinstance(value, str) else value
