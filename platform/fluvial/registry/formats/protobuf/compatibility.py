"""
Whether data written under one Protobuf schema can be read under another.

The rules and the names of the differences are Confluent's: fields are known by their numbers, scalars may change
within a group that is written alike, a message may move but not go. Where its registry passes over what loses data
(a repeated number read as a single one, an optional field that becomes required), this does not.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from google.protobuf import descriptor_pb2 as pb

from fluvial.registry.formats.protobuf.names import joined
from fluvial.registry.formats.protobuf.parse import ProtobufSchema
from fluvial.registry.formats.schema_kind import Steps, TooComplexError, distinct

# Messages of imported files are compared where they are used; a pair of them is compared once.
STEPS_MAX = 200_000
STEP_WEIGHT = 5

Field = pb.FieldDescriptorProto
GROUPS = {
    "number": {
        Field.TYPE_INT32,
        Field.TYPE_INT64,
        Field.TYPE_UINT32,
        Field.TYPE_UINT64,
        Field.TYPE_BOOL,
        Field.TYPE_ENUM,
    },
    "signed": {Field.TYPE_SINT32, Field.TYPE_SINT64},
    "text": {Field.TYPE_STRING, Field.TYPE_BYTES},
    "fixed32": {Field.TYPE_FIXED32, Field.TYPE_SFIXED32},
    "fixed64": {Field.TYPE_FIXED64, Field.TYPE_SFIXED64},
    "float": {Field.TYPE_FLOAT},
    "double": {Field.TYPE_DOUBLE},
}
GROUP_OF = {kind: name for name, kinds in GROUPS.items() for kind in kinds}


class Fault(StrEnum):
    """The kinds of difference that keep a reader from reading, or make it lose what was written."""

    PACKAGE_CHANGED = "PACKAGE_CHANGED"
    MESSAGE_REMOVED = "MESSAGE_REMOVED"
    FIELD_KIND_CHANGED = "FIELD_KIND_CHANGED"
    FIELD_SCALAR_KIND_CHANGED = "FIELD_SCALAR_KIND_CHANGED"
    FIELD_NAMED_TYPE_CHANGED = "FIELD_NAMED_TYPE_CHANGED"
    FIELD_NUMERIC_LABEL_CHANGED = "FIELD_NUMERIC_LABEL_CHANGED"
    REQUIRED_FIELD_ADDED = "REQUIRED_FIELD_ADDED"
    REQUIRED_FIELD_REMOVED = "REQUIRED_FIELD_REMOVED"
    ONEOF_FIELD_REMOVED = "ONEOF_FIELD_REMOVED"
    MULTIPLE_FIELDS_MOVED_TO_ONEOF = "MULTIPLE_FIELDS_MOVED_TO_ONEOF"
    FIELD_MOVED_TO_EXISTING_ONEOF = "FIELD_MOVED_TO_EXISTING_ONEOF"


SENTENCES = {
    Fault.PACKAGE_CHANGED: "The package at '{path}' in the {reader} schema does not match the package in the {writer} "
    "schema",
    Fault.MESSAGE_REMOVED: "The {reader} schema is missing a MESSAGE type at path '{path}' in the {writer} schema",
    Fault.FIELD_KIND_CHANGED: "The type of a field at path '{path}' in the {reader} schema does not match the {writer} "
    "schema",
    Fault.FIELD_SCALAR_KIND_CHANGED: "The kind of a SCALAR field at path '{path}' in the {reader} schema does not "
    "match its kind in the {writer} schema",
    Fault.FIELD_NAMED_TYPE_CHANGED: "The type of a MESSAGE field at path '{path}' in the {reader} schema does not "
    "match its type in the {writer} schema",
    Fault.FIELD_NUMERIC_LABEL_CHANGED: "The label for a NUMERIC field at path '{path}' in the {reader} schema does not "
    "match its label in the {writer} schema",
    Fault.REQUIRED_FIELD_ADDED: "A required field  at path '{path}' in the {reader} schema is missing in the {writer} "
    "schema",
    Fault.REQUIRED_FIELD_REMOVED: "The {reader} schema is missing a required field at path: '{path}' in the {writer} "
    "schema",
    Fault.ONEOF_FIELD_REMOVED: "The {reader} schema is missing a oneof field at path '{path}' in the {writer} schema",
    Fault.MULTIPLE_FIELDS_MOVED_TO_ONEOF: "Multiple fields in the oneof at path '{path}' in the {reader} schema are "
    "outside a oneof in the {writer} schema",
    Fault.FIELD_MOVED_TO_EXISTING_ONEOF: "A field in the oneof at path '{path}' in the {reader} schema is outside an "
    "existing oneof in the {writer} schema",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One reason why the reader loses data; `path` is of names of messages and numbers of fields."""

    fault: Fault
    path: tuple[str, ...]


def sentence(difference: Difference, *, reader: str, writer: str) -> str:
    """How Confluent's registry words it."""
    path = "#/" + "/".join(difference.path)
    description = SENTENCES[difference.fault].format(path=path, reader=reader, writer=writer)
    return f'{{errorType:"{difference.fault}", description:"{description}"}}'


def differences(reader: ProtobufSchema, writer: ProtobufSchema, steps: Steps | None = None) -> list[Difference]:
    """Everything that keeps `reader` from reading what `writer` wrote. Raises `TooComplexError`."""
    comparison = _Comparison(writer, reader, steps)
    try:
        comparison.files()
    except RecursionError:
        raise TooComplexError("the schemas are nested too deeply to be compared") from None
    return distinct(comparison.found)


class _Comparison:
    """`old` is the writer, `new` the reader; `done` holds the pairs of messages that are compared or being so."""

    def __init__(self, old: ProtobufSchema, new: ProtobufSchema, whole: Steps | None) -> None:
        self.steps = Steps(STEPS_MAX, "compare", whole=whole, weight=STEP_WEIGHT)
        self.old, self.new = old, new
        self.found: list[Difference] = []
        self.done: set[tuple[str, str]] = set()

    def add(self, fault: Fault, *path: str) -> None:
        self.found.append(Difference(fault=fault, path=path))

    def files(self) -> None:
        old, new = self.old.file, self.new.file
        if old.package != new.package:
            self.add(Fault.PACKAGE_CHANGED)
        self._messages((), old.message_type, new.message_type, (old.package, new.package))

    def _messages(self, path: tuple[str, ...], old: Any, new: Any, scopes: tuple[str, str]) -> None:
        after = {each.name: each for each in new}
        for each in old:
            if each.options.map_entry:
                continue
            if each.name not in after:
                self.add(Fault.MESSAGE_REMOVED, *path, each.name)
                continue
            place = (*path, each.name)
            self._message(place, (joined(scopes[0], each.name), joined(scopes[1], each.name)))

    def _message(self, path: tuple[str, ...], names: tuple[str, str]) -> None:
        if names in self.done:
            return
        self.done.add(names)
        old, new = self.old.types[names[0]], self.new.types[names[1]]
        self.steps.spend(1 + len(old.field) + len(new.field) + len(old.nested_type) + len(new.nested_type))
        before, after = _Members(old), _Members(new)
        self._oneofs(path, before, after)
        for number in sorted({**before.fields, **after.fields}):
            given, wanted = before.fields.get(number), after.fields.get(number)
            if wanted is None:
                assert given is not None, "a number is of one of the two"
                self._removed(path, given, before, after)
            elif given is None:
                if wanted.label == Field.LABEL_REQUIRED:
                    self.add(Fault.REQUIRED_FIELD_ADDED, *path, str(number))
            else:
                self._field((*path, *after.place(wanted)), (old, given), (new, wanted))
        self._messages(path, old.nested_type, new.nested_type, names)

    def _removed(
        self, path: tuple[str, ...], field: pb.FieldDescriptorProto, before: "_Members", after: "_Members"
    ) -> None:
        oneof = before.oneof_of(field)
        if oneof is not None:
            if oneof in after.oneofs or any(number in after.fields for number in before.oneofs[oneof]):
                self.add(Fault.ONEOF_FIELD_REMOVED, *path, *before.place(field))
        elif field.label == Field.LABEL_REQUIRED:
            self.add(Fault.REQUIRED_FIELD_REMOVED, *path, str(field.number))

    def _oneofs(self, path: tuple[str, ...], before: "_Members", after: "_Members") -> None:
        """Fields that could all be set before, and exclude one another now."""
        for oneof, numbers in after.oneofs.items():
            members = [before.fields[number] for number in numbers if number in before.fields]
            outside = [each for each in members if before.oneof_of(each) is None]
            groups = len(outside) + len({before.oneof_of(each) for each in members} - {None})
            if groups > 1:
                several = len(outside) > 1
                kind = Fault.MULTIPLE_FIELDS_MOVED_TO_ONEOF if several else Fault.FIELD_MOVED_TO_EXISTING_ONEOF
                self.add(kind, *path, oneof)

    def _field(
        self,
        path: tuple[str, ...],
        old: tuple[pb.DescriptorProto, pb.FieldDescriptorProto],
        new: tuple[pb.DescriptorProto, pb.FieldDescriptorProto],
    ) -> None:
        given, wanted = old[1], new[1]
        given_entry, wanted_entry = self._entry(self.old, given), self._entry(self.new, wanted)
        if given_entry is not None and wanted_entry is not None:
            for one, other in zip(given_entry.field, wanted_entry.field, strict=True):
                self._field(path, (given_entry, one), (wanted_entry, other))
            return
        given_group, wanted_group = GROUP_OF.get(given.type), GROUP_OF.get(wanted.type)
        if wanted.label == Field.LABEL_REQUIRED and given.label == Field.LABEL_OPTIONAL:
            self.add(Fault.REQUIRED_FIELD_ADDED, *path)
        if (given_entry is None) != (wanted_entry is None) or (given_group is None) != (wanted_group is None):
            self.add(Fault.FIELD_KIND_CHANGED, *path)
        elif given_group is None:
            if (given.type == Field.TYPE_GROUP) != (wanted.type == Field.TYPE_GROUP):
                self.add(Fault.FIELD_KIND_CHANGED, *path)
            else:
                self._named(path, given, wanted)
        elif given_group != wanted_group:
            self.add(Fault.FIELD_SCALAR_KIND_CHANGED, *path)
        elif given_group != "text" and self._label_changed(given, wanted):
            self.add(Fault.FIELD_NUMERIC_LABEL_CHANGED, *path)

    def _label_changed(self, given: pb.FieldDescriptorProto, wanted: pb.FieldDescriptorProto) -> bool:
        """Numbers in a row are written as one value, which a single number is not read from."""
        return bool((given.label == Field.LABEL_REPEATED) != (wanted.label == Field.LABEL_REPEATED))

    def _entry(self, side: ProtobufSchema, field: pb.FieldDescriptorProto) -> pb.DescriptorProto | None:
        """The entry of a map field, None for any other."""
        if field.type != Field.TYPE_MESSAGE:
            return None
        found: pb.DescriptorProto = side.types[field.type_name.removeprefix(".")]
        return found if found.options.map_entry else None

    def _named(self, path: tuple[str, ...], given: pb.FieldDescriptorProto, wanted: pb.FieldDescriptorProto) -> None:
        names = (given.type_name.removeprefix("."), wanted.type_name.removeprefix("."))
        local = (self._local(self.old, names[0]), self._local(self.new, names[1]))
        if local[0] != local[1]:
            self.add(Fault.FIELD_NAMED_TYPE_CHANGED, *path)
            return
        before = len(self.found)
        self._message(tuple(local[0].split(".")), names)
        if len(self.found) > before:
            self.add(Fault.FIELD_NAMED_TYPE_CHANGED, *path)

    def _local(self, side: ProtobufSchema, name: str) -> str:
        """A message's name within its file: it may have moved to another package."""
        outermost, rest = name, ""
        while True:
            space, _, last = outermost.rpartition(".")
            rest = joined(last, rest) if rest else last
            if space not in side.types:
                return rest
            outermost = space


class _Members:
    """The fields of a message by number and by the oneof they are of; an optional field of proto3 is of none."""

    def __init__(self, message: pb.DescriptorProto) -> None:
        self.fields = {each.number: each for each in message.field}
        self._names = [each.name for each in message.oneof_decl]
        self.oneofs: dict[str, list[int]] = {}
        for each in message.field:
            name = self.oneof_of(each)
            if name is not None:
                self.oneofs.setdefault(name, []).append(each.number)

    def oneof_of(self, field: pb.FieldDescriptorProto) -> str | None:
        """The oneof that a field is of."""
        if not field.HasField("oneof_index") or field.proto3_optional:
            return None
        return str(self._names[field.oneof_index])

    def place(self, field: pb.FieldDescriptorProto) -> tuple[str, ...]:
        """Where a field stands in its message."""
        oneof = self.oneof_of(field)
        return (str(field.number),) if oneof is None else (oneof, str(field.number))
