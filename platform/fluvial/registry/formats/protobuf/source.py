"""
.proto text to a `FileDescriptorProto`, as protoc makes it but for names of types, which stay as they are written.

The grammar is that of proto2 and proto3.
"""

from typing import Any

from google.protobuf import descriptor_pb2 as pb

from fluvial.registry.formats.protobuf.field_option_source import read_field_options
from fluvial.registry.formats.protobuf.option_source import OptionReader
from fluvial.registry.formats.protobuf.service_source import read_service
from fluvial.registry.formats.protobuf.tokens import Tokens
from fluvial.registry.formats.schema_kind import SchemaSyntaxError

# As deep as protoc takes them.
DEPTH_MAX = 32
IMPORTS_MAX = 1_000
NUMBER_MAX = 2**29 - 1
ENUM_NUMBER_MAX = 2**31 - 1

Field = pb.FieldDescriptorProto
SCALARS = {
    "double": Field.TYPE_DOUBLE,
    "float": Field.TYPE_FLOAT,
    "int64": Field.TYPE_INT64,
    "uint64": Field.TYPE_UINT64,
    "int32": Field.TYPE_INT32,
    "fixed64": Field.TYPE_FIXED64,
    "fixed32": Field.TYPE_FIXED32,
    "bool": Field.TYPE_BOOL,
    "string": Field.TYPE_STRING,
    "bytes": Field.TYPE_BYTES,
    "uint32": Field.TYPE_UINT32,
    "sfixed32": Field.TYPE_SFIXED32,
    "sfixed64": Field.TYPE_SFIXED64,
    "sint32": Field.TYPE_SINT32,
    "sint64": Field.TYPE_SINT64,
}
LABELS = {
    "optional": Field.LABEL_OPTIONAL,
    "required": Field.LABEL_REQUIRED,
    "repeated": Field.LABEL_REPEATED,
}


def file_of(text: str) -> pb.FileDescriptorProto:
    """Read a whole .proto file. Raises `SchemaSyntaxError` with the line."""
    return _Parser(text).file()


def json_name(name: str) -> str:
    """The name that a field has in JSON when it is given no other."""
    head, *rest = name.split("_")
    return head + "".join(each[:1].upper() + each[1:] for each in rest)


def map_entry_name(field: str) -> str:
    """The name of the message that a map field's entries are."""
    return "".join(each[:1].upper() + each[1:] for each in field.split("_")) + "Entry"


class _Parser:
    """Reads tokens into descriptors; `depth` counts the messages around."""

    def __init__(self, text: str) -> None:
        self.tokens = Tokens(text)
        self.options = OptionReader(self.tokens)
        self.found = pb.FileDescriptorProto()
        self.depth = 0
        self.imported: set[str] = set()

    @property
    def is_proto3(self) -> bool:
        return bool(self.found.syntax == "proto3")

    def file(self) -> pb.FileDescriptorProto:
        tokens, found = self.tokens, self.found
        if tokens.at("edition"):
            raise tokens.error('editions are not kept here; write syntax = "proto3" (or "proto2") instead')
        if tokens.skip("syntax"):
            tokens.expect("=")
            syntax = tokens.string("the syntax")
            if syntax not in {"proto2", "proto3"}:
                raise tokens.error(f'the syntax is "proto2" or "proto3" and not "{syntax[:40]}"')
            if syntax == "proto3":
                found.syntax = syntax
            tokens.expect(";")
        while tokens.next.kind != "end":
            self._statement()
        return found

    def _statement(self) -> None:
        tokens, found = self.tokens, self.found
        match tokens.next.text if tokens.next.kind in {"word", "mark"} else "":
            case ";":
                tokens.take()
            case "package":
                tokens.take()
                if found.package:
                    raise tokens.error("a file has one package")
                found.package = tokens.name("the package")
                tokens.expect(";")
            case "import":
                self._import()
            case "option":
                self.options.statement(found.options)
            case "message":
                self._message(found.message_type.add())
            case "enum":
                self._enum(found.enum_type.add())
            case "extend":
                self._extend(found.extension, found.message_type)
            case "service":
                read_service(tokens, self.options, found.service.add())
            case _:
                raise tokens.error("expected message, enum, import, option, extend, service or package")

    def _import(self) -> None:
        tokens, found = self.tokens, self.found
        tokens.take()
        kind = tokens.take().text if tokens.at("public") or tokens.at("weak") else ""
        name = tokens.string("the imported file")
        if name in self.imported or len(self.imported) >= IMPORTS_MAX:
            raise tokens.error(f'"{name[:100]}" is imported twice, or is one import more than {IMPORTS_MAX}')
        self.imported.add(name)
        found.dependency.append(name)
        if kind == "public":
            found.public_dependency.append(len(found.dependency) - 1)
        elif kind == "weak":
            found.weak_dependency.append(len(found.dependency) - 1)
        tokens.expect(";")

    def _message(self, found: pb.DescriptorProto) -> None:
        self.tokens.take()
        found.name = self.tokens.word("the message's name")
        self._message_body(found)

    def _message_body(self, found: pb.DescriptorProto) -> None:
        tokens = self.tokens
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise tokens.error(f"messages nested more than {DEPTH_MAX} levels deep")
        tokens.expect("{")
        while not tokens.skip("}"):
            self._member(found)
        self.depth -= 1
        self._number_optionals(found)

    def _member(self, found: pb.DescriptorProto) -> None:
        tokens = self.tokens
        match tokens.next.text if tokens.next.kind in {"word", "mark"} else "":
            case ";":
                tokens.take()
            case "message":
                self._message(found.nested_type.add())
            case "enum":
                self._enum(found.enum_type.add())
            case "extend":
                self._extend(found.extension, found.nested_type)
            case "option":
                self.options.statement(found.options)
            case "oneof":
                self._oneof(found)
            case "extensions":
                self._extensions(found)
            case "reserved":
                self._reserved(found, NUMBER_MAX, 1)
            case "map" if tokens.after_next.text == "<":
                self._map(found)
            case _:
                self._field(found.field.add(), found.nested_type)

    def _field(self, field: pb.FieldDescriptorProto, nested: Any, oneof: int | None = None) -> None:
        tokens = self.tokens
        label = None
        if tokens.next.text in LABELS and tokens.next.kind == "word":
            label = tokens.take().text
        if oneof is not None:
            if label is not None:
                raise tokens.error("a field of a oneof has no label")
            field.oneof_index = oneof
        elif label is None and not self.is_proto3:
            raise tokens.error("expected required, optional or repeated: proto2 wants a label")
        elif label == "required" and self.is_proto3:
            raise tokens.error("proto3 has no required fields")
        elif label == "optional" and self.is_proto3:
            field.proto3_optional = True
        field.label = LABELS[label or "optional"]
        if tokens.at("group"):
            self._group(field, nested)
            return
        self._type(field)
        field.name = tokens.word("the field's name")
        self._number(field)
        read_field_options(tokens, self.options, field, is_proto3=self.is_proto3)
        tokens.expect(";")

    def _type(self, field: pb.FieldDescriptorProto) -> None:
        name = self.tokens.name("a type")
        if name in SCALARS:
            field.type = SCALARS[name]
        else:
            field.type_name = name

    def _number(self, field: pb.FieldDescriptorProto) -> None:
        self.tokens.expect("=")
        number = self.tokens.whole("the field's number")
        if not 1 <= number <= NUMBER_MAX:
            raise SchemaSyntaxError(f"field {field.name}: its number is {number} and not from 1 to {NUMBER_MAX}")
        field.number = number

    def _group(self, field: pb.FieldDescriptorProto, nested: Any) -> None:
        tokens = self.tokens
        if self.is_proto3:
            raise tokens.error("proto3 has no groups")
        tokens.take()
        name = tokens.word("the group's name")
        if not name[0].isupper():
            raise tokens.error(f"the group {name[:60]} begins with a capital")
        field.name, field.type, field.type_name = name.lower(), Field.TYPE_GROUP, name
        self._number(field)
        read_field_options(tokens, self.options, field, is_proto3=self.is_proto3)
        message = nested.add()
        message.name = name
        self._message_body(message)

    def _map(self, found: pb.DescriptorProto) -> None:
        tokens = self.tokens
        tokens.take()
        tokens.expect("<")
        field, entry = found.field.add(), found.nested_type.add()
        key = entry.field.add(name="key", number=1, label=Field.LABEL_OPTIONAL)
        self._type(key)
        if key.type_name or key.type in {Field.TYPE_DOUBLE, Field.TYPE_FLOAT, Field.TYPE_BYTES}:
            raise tokens.error("the keys of a map are whole numbers, bool or string")
        tokens.expect(",")
        self._type(entry.field.add(name="value", number=2, label=Field.LABEL_OPTIONAL))
        tokens.expect(">")
        field.name = tokens.word("the field's name")
        field.label, field.type = Field.LABEL_REPEATED, Field.TYPE_MESSAGE
        entry.name = field.type_name = map_entry_name(field.name)
        entry.options.map_entry = True
        self._number(field)
        read_field_options(tokens, self.options, field, is_proto3=self.is_proto3)
        tokens.expect(";")

    def _oneof(self, found: pb.DescriptorProto) -> None:
        tokens = self.tokens
        tokens.take()
        oneof = found.oneof_decl.add(name=tokens.word("the oneof's name"))
        index, before = len(found.oneof_decl) - 1, len(found.field)
        tokens.expect("{")
        while not tokens.skip("}"):
            if tokens.at("option"):
                self.options.statement(oneof.options)
            elif not tokens.skip(";"):
                self._field(found.field.add(), found.nested_type, index)
        if len(found.field) == before:
            raise tokens.error(f"the oneof {oneof.name} has no field")

    def _number_optionals(self, found: pb.DescriptorProto) -> None:
        """An optional field of proto3 is a oneof of one field, behind the real ones."""
        taken = {each.name for each in found.field} | {each.name for each in found.oneof_decl}
        for field in found.field:
            if field.proto3_optional:
                name = field.name if field.name.startswith("_") else f"_{field.name}"
                while name in taken:
                    name = f"X{name}"
                taken.add(name)
                found.oneof_decl.add(name=name)
                field.oneof_index = len(found.oneof_decl) - 1

    def _extensions(self, found: pb.DescriptorProto) -> None:
        tokens = self.tokens
        if self.is_proto3:
            raise tokens.error("proto3 has no extensions")
        tokens.take()
        added = []
        while True:
            start, end = self._range(NUMBER_MAX, 1)
            added.append(found.extension_range.add(start=start, end=end + 1))
            if not tokens.skip(","):
                break
        if tokens.at("["):
            options = pb.ExtensionRangeOptions()
            self.options.bracketed(options)
            for each in added:
                each.options.CopyFrom(options)
        tokens.expect(";")

    def _range(self, most: int, least: int) -> tuple[int, int]:
        tokens = self.tokens
        start = end = tokens.whole("a number")
        if tokens.skip("to"):
            end = most if tokens.skip("max") else tokens.whole("a number or max")
        if not least <= start <= end <= most:
            raise tokens.error(f"{start} to {end} is not a range from {least} to {most}")
        return start, end

    def _reserved(self, found: Any, most: int, least: int) -> None:
        """Numbers or names that are not to be used; the end of a range belongs to it in an enum only."""
        tokens = self.tokens
        tokens.take()
        while True:
            if tokens.next.kind == "text":
                found.reserved_name.append(tokens.string("a reserved name"))
            elif tokens.next.kind == "word":
                raise tokens.error('expected a number or a name in quotes, such as "name"')
            else:
                start, end = self._range(most, least)
                found.reserved_range.add(start=start, end=end + 1 if least == 1 else end)
            if not tokens.skip(","):
                break
        tokens.expect(";")

    def _enum(self, found: pb.EnumDescriptorProto) -> None:
        tokens = self.tokens
        tokens.take()
        found.name = tokens.word("the enum's name")
        tokens.expect("{")
        while not tokens.skip("}"):
            if tokens.skip(";"):
                continue
            if tokens.at("option") and tokens.after_next.text != "=":
                self.options.statement(found.options)
            elif tokens.at("reserved") and tokens.after_next.text != "=":
                self._reserved(found, ENUM_NUMBER_MAX, -ENUM_NUMBER_MAX - 1)
            else:
                value = found.value.add(name=tokens.word("a value's name"))
                tokens.expect("=")
                number = tokens.whole("the value's number")
                if not -ENUM_NUMBER_MAX - 1 <= number <= ENUM_NUMBER_MAX:
                    raise tokens.error(f"{number} is not a number of 32 bits")
                value.number = number
                if tokens.at("["):
                    self.options.bracketed(value.options)
                tokens.expect(";")

    def _extend(self, extensions: Any, nested: Any) -> None:
        tokens = self.tokens
        tokens.take()
        extended = tokens.name("the extended message")
        tokens.expect("{")
        while not tokens.skip("}"):
            if not tokens.skip(";"):
                field = extensions.add(extendee=extended)
                self._field(field, nested)
