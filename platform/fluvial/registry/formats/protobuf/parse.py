"""
Protobuf schemas: .proto text, or the base64 of a serialized `FileDescriptorProto` as Python's serializers send it.

Both come to a descriptor whose types have their full names and to one text. Imports are the references registered with
the schema, by their names, and the files that protobuf, Google's common types and Confluent's own come with.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from google.protobuf import descriptor_pb2 as pb
from google.protobuf import descriptor_pool
from google.protobuf.message import DecodeError

from fluvial.extras import pip_install
from fluvial.registry.formats.protobuf.custom_options import spell_out
from fluvial.registry.formats.protobuf.names import Names, complete, defined_by, name_steps
from fluvial.registry.formats.protobuf.source import DEPTH_MAX, IMPORTS_MAX, file_of
from fluvial.registry.formats.protobuf.text import canonical
from fluvial.registry.formats.schema_kind import Parsed, SchemaSyntaxError

BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*\Z")
# What everyone may import without registering it, and the modules that have it.
COMMON = {
    **{
        f"google/protobuf/{stem}.proto": f"google.protobuf.{stem}_pb2"
        for stem in (
            "any",
            "api",
            "descriptor",
            "duration",
            "empty",
            "field_mask",
            "source_context",
            "struct",
            "timestamp",
            "type",
            "wrappers",
        )
    },
    **{
        f"google/type/{stem}.proto": f"google.type.{stem}_pb2"
        for stem in (
            "calendar_period",
            "color",
            "date",
            "datetime",
            "dayofweek",
            "expr",
            "fraction",
            "latlng",
            "money",
            "month",
            "postal_address",
            "quaternion",
            "timeofday",
        )
    },
    "confluent/meta.proto": "confluent_kafka.schema_registry.confluent.meta_pb2",
    "confluent/type/decimal.proto": "confluent_kafka.schema_registry.confluent.type.decimal_pb2",
    "confluent/type/variant.proto": "confluent_kafka.schema_registry.confluent.type.variant_pb2",
    "confluent/types/decimal.proto": "confluent_kafka.schema_registry.confluent.types.decimal_pb2",
}
OWN_NAME = "schema.proto"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ProtobufSchema:
    """A file with full names of types; `types` has those of every file that it imports, directly or not."""

    file: pb.FileDescriptorProto
    types: Mapping[str, Any]


def parse(text: str, *, references: Mapping[str, str] | None = None, normalize: bool = False) -> Parsed:
    """
    Parse a schema into a `ProtobufSchema`; `references` are the texts it may import, by the names it imports them by.

    Raises `SchemaSyntaxError`, also for what protobuf's own builder of descriptors turns down.
    """
    try:
        imports = _Imports(references or {})
        file = _read(text)
        file.name = OWN_NAME
        names = imports.names_for(file, ())
        names.add(defined_by(file))
        complete(file, names)
        imports.check(file)
        spell_out(file, imports.pool)
        stored = canonical(file, names, normalize=normalize)
        stored.encode("utf-8")
    except RecursionError:
        raise SchemaSyntaxError("types nested too deeply, or within themselves") from None
    except UnicodeEncodeError:
        raise SchemaSyntaxError("holds half of a surrogate pair (\\ud800 to \\udfff)") from None
    types = imports.types | names.types
    return Parsed(schema=ProtobufSchema(file=file, types=types), text=stored, types=len(types))


def serialized(schema: ProtobufSchema) -> str:
    """The base64 of the descriptor, which Python's deserializers ask for."""
    file = pb.FileDescriptorProto()
    file.CopyFrom(schema.file)
    file.name = "default"
    return base64.b64encode(file.SerializeToString(deterministic=True)).decode("ascii")


def _read(text: str) -> pb.FileDescriptorProto:
    if BASE64.match(text) is None:
        return file_of(text)
    try:
        found = pb.FileDescriptorProto.FromString(base64.b64decode("".join(text.split()), validate=True))
    except (binascii.Error, DecodeError):
        raise SchemaSyntaxError("neither .proto text nor the base64 of a serialized FileDescriptorProto") from None
    if found.syntax not in {"", "proto2", "proto3"}:
        raise SchemaSyntaxError(f'{found.syntax[:40]} is not kept here; write syntax = "proto3" (or "proto2") instead')
    if found.syntax == "proto2":
        found.ClearField("syntax")
    if len(found.dependency) > IMPORTS_MAX:
        raise SchemaSyntaxError(f"more than {IMPORTS_MAX} imports")
    found.ClearField("source_code_info")
    _check_messages(found)
    return found


def _check_messages(file: pb.FileDescriptorProto) -> None:
    waiting = [(each, 1) for each in file.message_type]
    while waiting:
        message, depth = waiting.pop()
        if depth > DEPTH_MAX:
            raise SchemaSyntaxError(f"messages nested more than {DEPTH_MAX} levels deep")
        if message.options.map_entry and [each.number for each in message.field] != [1, 2]:
            raise SchemaSyntaxError(f"the map's entry {message.name[:100]} is not a key and a value")
        waiting += [(each, depth + 1) for each in message.nested_type]


class _Imports:
    """Reads each imported file once, and hands them to protobuf's builder in the order of their use."""

    def __init__(self, references: Mapping[str, str]) -> None:
        self._texts = references
        self._files: dict[str, pb.FileDescriptorProto] = {}
        self._defined: dict[str, Mapping[str, Any]] = {}
        self._steps = name_steps()
        self.types: dict[str, Any] = {}  # of all files that were read
        self.pool = descriptor_pool.DescriptorPool()

    def names_for(self, file: pb.FileDescriptorProto, path: tuple[str, ...]) -> Names:
        """What the imports of `file` define, those that they pass on included."""
        names = Names(self._steps)
        seen: set[str] = set()
        waiting = list(reversed(file.dependency))
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            imported = self._file(name, path)
            names.add(self._defined[name])
            waiting += [imported.dependency[index] for index in imported.public_dependency]
        return names

    def _file(self, name: str, path: tuple[str, ...]) -> pb.FileDescriptorProto:
        if name in path:
            raise SchemaSyntaxError(f'"{name[:200]}" imports itself, by way of {len(path) - path.index(name)} files')
        known = self._files.get(name)
        if known is not None:
            return known
        if len(self._files) >= IMPORTS_MAX or len(path) >= DEPTH_MAX * 3:
            raise SchemaSyntaxError(f"more than {IMPORTS_MAX} imports, or {DEPTH_MAX * 3} one within the other")
        file = self._source(name)
        file.name = name
        names = self.names_for(file, (*path, name))
        for each in file.dependency:
            self._file(each, (*path, name))
        defined = defined_by(file)
        names.add(defined)
        complete(file, names)
        self._files[name], self._defined[name] = file, defined
        self.types |= defined
        self.check(file)
        return file

    def _source(self, name: str) -> pb.FileDescriptorProto:
        if name in self._texts:
            return _read(self._texts[name])
        if name not in COMMON:
            raise SchemaSyntaxError(
                f'the import "{name[:200]}" is not known here; register that file and name it "{name[:200]}" '
                "in `references`"
            )
        file = pb.FileDescriptorProto()
        try:
            import_module(COMMON[name]).DESCRIPTOR.CopyToProto(file)
        except ModuleNotFoundError as error:
            raise SchemaSyntaxError(
                f'the import "{name}" is known here with `{pip_install("all")}`, or register that file and name it '
                f'"{name}" in `references`'
            ) from error
        return file

    def check(self, file: pb.FileDescriptorProto) -> None:
        """Have protobuf itself build the file: what it turns down, no client could read."""
        plain = pb.FileDescriptorProto()
        plain.CopyFrom(file)
        try:
            self.pool.Add(plain)
            self.pool.FindFileByName(file.name)
        except (TypeError, KeyError, ValueError) as error:
            reason = str(error).removeprefix("Couldn't build proto file into descriptor pool: ")
            raise SchemaSyntaxError(reason.replace("'", '"')[:500]) from None
