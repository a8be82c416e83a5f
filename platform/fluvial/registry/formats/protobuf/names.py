"""
What a type's name in a .proto file stands for, and the shortest name that stands for a type.

A name is looked for in the message it is used in, then in those around it, then in the package and the packages around
that; the first of its parts that is found somewhere decides.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import descriptor_pb2 as pb

from fluvial.registry.formats.schema_kind import SchemaSyntaxError, Steps

Field = pb.FieldDescriptorProto
# Every use of a type is looked for in all scopes around it, each of which has a name of so many characters at most.
FULL_NAME_CHARACTERS_MAX = 1_000
STEPS_MAX = 500_000
NAMES_A_STEP = 20  # are known in the time of one step where a file is imported


def name_steps() -> Steps:
    """The count of what is looked up for one schema and its imports."""
    return Steps(STEPS_MAX, "find the types that they name")


def defined_by(file: pb.FileDescriptorProto) -> dict[str, Any]:
    """
    The types that a file defines, by full name without leading dot.

    Raises `SchemaSyntaxError` for one that is defined twice or whose name is too long.
    """
    found: dict[str, Any] = {}
    for scope in (file.package, *(joined(file.package, each.name) for each in file.service)):
        _check_length(scope)
    waiting = [(file.package, each) for each in (*file.message_type, *file.enum_type)]
    while waiting:
        space, each = waiting.pop()
        full = joined(space, each.name)
        _check_length(full)
        if full in found:
            raise SchemaSyntaxError(f"{full} is defined twice")
        found[full] = each
        if isinstance(each, pb.DescriptorProto):
            waiting += [(full, inner) for inner in (*each.nested_type, *each.enum_type)]
    return found


def _check_length(full: str) -> None:
    if len(full) > FULL_NAME_CHARACTERS_MAX:
        raise SchemaSyntaxError(f"the name {full[:100]}… has more than {FULL_NAME_CHARACTERS_MAX} characters")


class Names:
    """The types that a file sees: its own and those of its imports, by full name without leading dot."""

    def __init__(self, steps: Steps) -> None:
        self.types: dict[str, Any] = {}
        self._steps = steps
        self._shortest: dict[tuple[str, str], str] = {}

    def add(self, defined: Mapping[str, Any]) -> None:
        """Know what a file defines. Raises `SchemaSyntaxError` for what is defined already."""
        self._steps.spend(1 + len(defined) // NAMES_A_STEP)
        twice = self.types.keys() & defined.keys()
        if twice:
            raise SchemaSyntaxError(f"{min(twice)} is defined twice")
        self.types.update(defined)

    def resolve(self, name: str, scope: str) -> str | None:
        """The full name of the type that `name` stands for within `scope`, None where it stands for none."""
        if name.startswith("."):
            return name[1:] if name[1:] in self.types else None
        first = name.partition(".")[0]
        while True:
            self._steps.spend()
            candidate = joined(scope, first)
            full = joined(scope, name)
            if full in self.types:
                return full
            if candidate in self.types and first != name:
                return None
            if not scope:
                return None
            scope = scope.rpartition(".")[0]

    def shortest(self, full: str, scope: str) -> str:
        """The shortest name that stands for a type within `scope`."""
        known = self._shortest.get((full, scope))
        if known is None:
            known = self._shortest[full, scope] = self._search(full, scope)
        return known

    def _search(self, full: str, scope: str) -> str:
        parts = full.split(".")
        for start in range(len(parts) - 1, -1, -1):
            name = ".".join(parts[start:])
            if self.resolve(name, scope) == full:
                return name
        return f".{full}"


def joined(space: str, name: str) -> str:
    """A name within a package or message."""
    return f"{space}.{name}" if space else name


def complete(file: pb.FileDescriptorProto, names: Names) -> None:
    """Give every type that `file` names its full name, as protoc does. Raises `SchemaSyntaxError`."""
    for field, scope in fields_of(file):
        if field.type_name:
            full = _found(names, field.type_name, scope, field.name)
            field.type_name = f".{full}"
            if isinstance(names.types[full], pb.EnumDescriptorProto):
                field.type = Field.TYPE_ENUM
            elif field.type != Field.TYPE_GROUP:
                field.type = Field.TYPE_MESSAGE
        if field.HasField("extendee"):
            field.extendee = f".{_found(names, field.extendee, scope, field.name)}"
    for service in file.service:
        scope = joined(file.package, service.name)
        for method in service.method:
            method.input_type = f".{_found(names, method.input_type, scope, method.name)}"
            method.output_type = f".{_found(names, method.output_type, scope, method.name)}"


def fields_of(file: pb.FileDescriptorProto) -> Iterator[tuple[pb.FieldDescriptorProto, str]]:
    """Every field and extension of a file with the scope that its type's name is looked for in."""
    for each in file.extension:
        yield each, file.package
    waiting = [(file.package, each) for each in file.message_type]
    while waiting:
        space, message = waiting.pop()
        full = joined(space, message.name)
        for each in (*message.field, *message.extension):
            yield each, full
        waiting += [(full, each) for each in message.nested_type]


def _found(names: Names, name: str, scope: str, user: str) -> str:
    full = names.resolve(name, scope)
    if full is None:
        raise SchemaSyntaxError(
            f"{joined(scope, user)[:200]} is of type {name[:200]}, which neither this file nor an import defines"
        )
    return full
