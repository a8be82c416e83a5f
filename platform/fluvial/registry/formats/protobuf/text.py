"""
A `FileDescriptorProto` as .proto text: the one text under which a Protobuf schema is stored and compared.

It is laid out as Confluent's registry does: within a message reserved numbers, options, fields, oneofs, extensions and
then the types inside it, messages before enums. Types have the shortest name that stands for them, so that text and
descriptor of a schema come to the same.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from google.protobuf import descriptor_pb2 as pb

from fluvial.registry.formats.protobuf.custom_options import one_line
from fluvial.registry.formats.protobuf.names import Names, joined
from fluvial.registry.formats.protobuf.source import ENUM_NUMBER_MAX, NUMBER_MAX, SCALARS, json_name
from fluvial.registry.formats.protobuf.tokens import escaped, unescaped

Field = pb.FieldDescriptorProto
NAMES_OF_SCALARS = {number: name for name, number in SCALARS.items()}


def canonical(file: pb.FileDescriptorProto, names: Names, *, normalize: bool = False) -> str:
    """
    Write the text of a file whose types have their full names.

    `normalize` also orders fields, values and options, which no reader notices.
    """
    return "\n".join(_Writer(file, names, normalize).file()) + "\n"


class _Writer:
    def __init__(self, file: pb.FileDescriptorProto, names: Names, normalize: bool) -> None:
        self.source = file
        self.names = names
        self.normalize = normalize

    def file(self) -> list[str]:
        file = self.source
        found = [f'syntax = "{file.syntax or "proto2"}";']
        if file.package:
            found.append(f"package {file.package};")
        kinds = dict.fromkeys(file.weak_dependency, "weak ") | dict.fromkeys(file.public_dependency, "public ")
        imports = [(each, kinds.get(index, "")) for index, each in enumerate(file.dependency)]
        imports.sort(key=lambda each: (each[1], each[0] if self.normalize else ""))
        sections = [
            [f'import {kind}"{escaped(name.encode())}";' for name, kind in imports],
            self._option_lines(file.options),
            self._types(file, file.package),
            self._extends(file.extension, file.package),
            [line for each in file.service for line in self._service(each)],
        ]
        for section in sections:
            if section:
                found += ["", *section]
        return found

    def _types(self, holder: Any, scope: str) -> list[str]:
        messages = holder.message_type if isinstance(holder, pb.FileDescriptorProto) else holder.nested_type
        groups = _group_names(holder)
        found = [
            line
            for each in messages
            if not each.options.map_entry and each.name not in groups
            for line in [f"message {each.name} {{", *self._body(each, scope)]
        ]
        return found + [line for each in holder.enum_type for line in self._enum(each)]

    def _body(self, message: pb.DescriptorProto, scope: str) -> list[str]:
        """What stands between the braces of a message, and the closing one."""
        scope = joined(scope, message.name)
        fields = self._ordered(message.field, lambda each: each.number)
        members_of: dict[int, list[pb.FieldDescriptorProto]] = {}
        for each in fields:
            if each.HasField("oneof_index") and not each.proto3_optional:
                members_of.setdefault(each.oneof_index, []).append(each)
        oneofs = []
        for index, members in sorted(members_of.items()):
            oneof = message.oneof_decl[index]
            lines = self._option_lines(oneof.options)
            lines += [line for each in members for line in self._field(each, scope, in_oneof=True)]
            oneofs.append((members[0].number, [f"oneof {oneof.name} {{", *_indented(lines), "}"]))
        plain = [each for each in fields if not each.HasField("oneof_index") or each.proto3_optional]
        sections = [
            self._reserved(message, NUMBER_MAX, 1),
            self._option_lines(message.options, without=("map_entry",)),
            [line for each in plain for line in self._field(each, scope)],
            [line for _, lines in self._ordered(oneofs, lambda each: each[0]) for line in lines],
            [line for each in message.extension_range for line in self._extension_range(each)],
            self._extends(message.extension, scope),
            self._types(message, scope),
        ]
        return _braced(sections)

    def _field(self, field: pb.FieldDescriptorProto, scope: str, *, in_oneof: bool = False) -> list[str]:
        named = self.names.types[field.type_name.removeprefix(".")] if field.type_name else None
        label = "" if in_oneof else self._label(field)
        options = self._field_options(field)
        if isinstance(named, pb.DescriptorProto) and named.options.map_entry:
            key, value = (self._type(each, scope) for each in named.field)
            return _with_options(f"map<{key}, {value}> {field.name} = {field.number}", options)
        if field.type == Field.TYPE_GROUP:
            assert named is not None, "a group has a type"
            head = _with_options(f"{label}group {named.name} = {field.number}", options)
            return [*head[:-1], head[-1].removesuffix(";") + " {", *self._body(named, scope)]
        return _with_options(f"{label}{self._type(field, scope)} {field.name} = {field.number}", options)

    def _label(self, field: pb.FieldDescriptorProto) -> str:
        if field.label == Field.LABEL_REPEATED:
            return "repeated "
        if field.label == Field.LABEL_REQUIRED:
            return "required "
        return "optional " if field.proto3_optional or self.source.syntax != "proto3" else ""

    def _type(self, field: pb.FieldDescriptorProto, scope: str) -> str:
        if field.type in NAMES_OF_SCALARS:
            return NAMES_OF_SCALARS[field.type]
        return self.names.shortest(field.type_name.removeprefix("."), scope)

    def _field_options(self, field: pb.FieldDescriptorProto) -> list[str]:
        options = self._options(field.options)
        if field.HasField("default_value"):
            options.append(f"default = {_default(field)}")
        if field.HasField("json_name") and field.json_name != json_name(field.name):
            options.append(f'json_name = "{escaped(field.json_name.encode())}"')
        return options

    def _enum(self, enum: pb.EnumDescriptorProto) -> list[str]:
        values: list[str] = []
        for each in self._ordered(enum.value, lambda each: (each.number, each.name)):
            values += _with_options(f"{each.name} = {each.number}", self._options(each.options))
        head = [*self._reserved(enum, ENUM_NUMBER_MAX, -ENUM_NUMBER_MAX - 1)]
        return [f"enum {enum.name} {{", *_braced([head, [*self._option_lines(enum.options), *values]])]

    def _reserved(self, holder: Any, most: int, least: int) -> list[str]:
        ranges = [(each.start, each.end - 1 if least == 1 else each.end) for each in holder.reserved_range]
        found = [
            f"reserved {start};" if start == end else f"reserved {start} to {'max' if end == most else end};"
            for start, end in self._ordered(ranges, lambda each: each)
        ]
        names = self._ordered(holder.reserved_name, lambda each: each)
        return found + [f'reserved "{escaped(each.encode())}";' for each in names]

    def _extension_range(self, found: pb.DescriptorProto.ExtensionRange) -> list[str]:
        end = found.end - 1
        numbers = f"{found.start}" if found.start == end else f"{found.start} to {'max' if end == NUMBER_MAX else end}"
        return _with_options(f"extensions {numbers}", self._options(found.options))

    def _extends(self, extensions: Iterable[pb.FieldDescriptorProto], scope: str) -> list[str]:
        by_message: dict[str, list[str]] = {}
        for each in extensions:
            by_message.setdefault(each.extendee, []).extend(self._field(each, scope))
        found: list[str] = []
        for name, lines in by_message.items():
            found += [f"extend {self.names.shortest(name.removeprefix('.'), scope)} {{", *_indented(lines), "}"]
        return found

    def _service(self, service: pb.ServiceDescriptorProto) -> list[str]:
        scope = joined(self.source.package, service.name)
        methods: list[str] = []
        for each in service.method:
            sides = [
                ("stream " if streams else "") + self.names.shortest(name.removeprefix("."), scope)
                for name, streams in (
                    (each.input_type, each.client_streaming),
                    (each.output_type, each.server_streaming),
                )
            ]
            head = f"rpc {each.name} ({sides[0]}) returns ({sides[1]})"
            options = self._option_lines(each.options)
            methods += [f"{head} {{", *_indented(options), "};"] if options else [f"{head};"]
        return [f"service {service.name} {{", *_braced([[*self._option_lines(service.options), *methods]])]

    def _option_lines(self, options: Any, without: Sequence[str] = ()) -> list[str]:
        return [f"option {each};" for each in self._options(options, without)]

    def _options(self, options: Any, without: Sequence[str] = ()) -> list[str]:
        found: list[str] = []
        for field, value in options.ListFields():
            if field.name == "uninterpreted_option":
                found += [_uninterpreted(each) for each in value]
            elif field.name not in without and not field.is_extension:
                values = value if field.is_repeated else [value]
                found += [f"{field.name} = {_known_value(field, each)}" for each in values]
        return sorted(found) if self.normalize else found

    def _ordered(self, found: Iterable[Any], key: Any) -> list[Any]:
        return sorted(found, key=key) if self.normalize else list(found)


def _group_names(holder: Any) -> set[str]:
    fields = holder.extension if isinstance(holder, pb.FileDescriptorProto) else (*holder.field, *holder.extension)
    return {each.type_name.rpartition(".")[2] for each in fields if each.type == Field.TYPE_GROUP}


def _known_value(field: Any, value: Any) -> str:
    if field.message_type is not None:
        return f"{{ {one_line(value)} }}"
    if field.enum_type is not None:
        return str(field.enum_type.values_by_number[value].name)
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{escaped(str(value).encode())}"'


def _default(field: pb.FieldDescriptorProto) -> str:
    if field.type == Field.TYPE_STRING:
        return f'"{escaped(field.default_value.encode())}"'
    if field.type == Field.TYPE_BYTES:
        return f'"{escaped(unescaped(field.default_value))}"'
    return str(field.default_value)


def _uninterpreted(option: pb.UninterpretedOption) -> str:
    name = ".".join(f"({each.name_part})" if each.is_extension else each.name_part for each in option.name)
    if option.HasField("identifier_value"):
        value = option.identifier_value
    elif option.HasField("positive_int_value"):
        value = str(option.positive_int_value)
    elif option.HasField("negative_int_value"):
        value = str(option.negative_int_value)
    elif option.HasField("double_value"):
        value = repr(option.double_value)
    elif option.HasField("string_value"):
        value = f'"{escaped(option.string_value)}"'
    else:
        value = f"{{ {option.aggregate_value} }}" if option.aggregate_value else "{ }"
    return f"{name} = {value}"


def _with_options(head: str, options: list[str]) -> list[str]:
    if not options:
        return [f"{head};"]
    if len(options) == 1:
        return [f"{head} [{options[0]}];"]
    return [f"{head} [", *(f"  {each}," for each in options[:-1]), f"  {options[-1]}", "];"]


def _braced(sections: Iterable[list[str]]) -> list[str]:
    """Sections with an empty line between; what opens the brace stands before."""
    found: list[str] = []
    for section in sections:
        if section:
            found += ["", *section] if found else section
    return [*_indented(found), "}"]


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {each}" if each else each for each in lines]
