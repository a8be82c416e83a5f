"""
Options in .proto text, set on the message of options that they are for.

Those that protobuf itself defines are set; those that extensions define stay uninterpreted, as their text.
"""

from typing import Any

from google.protobuf import descriptor_pb2 as pb
from google.protobuf import text_format

from fluvial.registry.formats.protobuf.tokens import Tokens, whole_value

Field = pb.FieldDescriptorProto


class OptionReader:
    """Reads options where the tokens stand."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens

    def statement(self, options: Any) -> None:
        """`option name = value;`"""
        if not self.tokens.at("option"):
            raise self.tokens.error("expected option")
        self.tokens.take()
        self.option(options)
        self.tokens.expect(";")

    def bracketed(self, options: Any) -> None:
        """Options in square brackets, with commas between."""
        self.tokens.expect("[")
        while True:
            self.option(options)
            if self.tokens.skip("]"):
                return
            self.tokens.expect(",")

    def option(self, options: Any) -> None:
        """`name = value`; a name is of parts with dots between, and a part in brackets is an extension's."""
        tokens = self.tokens
        parts: list[tuple[str, bool]] = []
        while True:
            if tokens.skip("("):
                parts.append((tokens.name("the option's name"), True))
                tokens.expect(")")
            else:
                parts.append((tokens.word("the option's name"), False))
            if not tokens.skip("."):
                break
        tokens.expect("=")
        if len(parts) == 1 and not parts[0][1]:
            self._known(options, parts[0][0])
            return
        found = options.uninterpreted_option.add()
        for name, is_extension in parts:
            found.name.add(name_part=name, is_extension=is_extension)
        self._value(found)

    def _known(self, options: Any, name: str) -> None:
        tokens = self.tokens
        field = options.DESCRIPTOR.fields_by_name.get(name)
        if field is None:
            raise tokens.error(f"`{name[:60]}` is not an option of protobuf here; write one of your own in brackets")
        value: Any
        if field.message_type is not None:
            self._of_message(options, field)
            return
        if field.enum_type is not None:
            word = tokens.word("a value")
            if word not in field.enum_type.values_by_name:
                raise tokens.error(f"`{word[:60]}` is not a value of the option {name}")
            value = field.enum_type.values_by_name[word].number
        elif field.type == Field.TYPE_BOOL:
            if tokens.next.text not in {"true", "false"}:
                raise tokens.error("expected true or false")
            value = tokens.take().text == "true"
        else:
            value = tokens.string("a string")
        try:
            if isinstance(getattr(options, name), bool | int | str):
                setattr(options, name, value)
            else:
                getattr(options, name).append(value)
        except ValueError as error:
            raise tokens.error(f"the option {name}: {error}") from None

    def _of_message(self, options: Any, field: Any) -> None:
        tokens = self.tokens
        text = self._aggregate()
        try:
            if field.is_repeated:
                text_format.Parse(text, getattr(options, field.name).add())
            else:
                text_format.Parse(text, getattr(options, field.name))
        except text_format.ParseError as error:
            raise tokens.error(f"the option {field.name}: {error}") from None

    def _value(self, found: pb.UninterpretedOption) -> None:
        tokens = self.tokens
        negative = tokens.skip("-")
        token = tokens.next
        if token.kind == "text":
            found.string_value = tokens.strings("a string")
        elif token.kind == "whole" and whole_value(token.text) <= (2**63 if negative else 2**64 - 1):
            number = whole_value(tokens.take().text)
            if negative:
                found.negative_int_value = -number
            else:
                found.positive_int_value = number
        elif token.kind in {"real", "whole"}:
            real = float(whole_value(token.text) if token.kind == "whole" else token.text.rstrip("fF"))
            found.double_value = -real if negative else real
            tokens.take()
        elif token.kind == "word":
            if negative and token.text in {"inf", "nan"}:
                found.double_value = -float(token.text)
            else:
                found.identifier_value = token.text
            tokens.take()
        elif tokens.at("{"):
            found.aggregate_value = self._aggregate()
        else:
            raise tokens.error("expected a value")

    def _aggregate(self) -> str:
        """A message as text; its words with one blank between them, which is its one form here."""
        tokens = self.tokens
        tokens.expect("{")
        words: list[str] = []
        depth = 1
        while True:
            token = tokens.take()
            if token.kind == "end":
                raise tokens.error("expected `}`")
            depth += (token.text == "{") - (token.text == "}") if token.kind == "mark" else 0
            if depth == 0:
                return " ".join(words)
            words.append(token.text)
