"""Protobuf files by chance, others that differ from them a little, and messages of them."""

import copy
import random
from dataclasses import dataclass, field, replace
from typing import Any

SCALARS = [
    "int32",
    "int64",
    "uint32",
    "uint64",
    "sint32",
    "sint64",
    "bool",
    "fixed32",
    "sfixed32",
    "fixed64",
    "sfixed64",
    "float",
    "double",
    "string",
    "bytes",
]
TYPES = [*SCALARS, "Color", "Leaf", "Root"]


@dataclass(frozen=True)
class MadeField:
    name: str
    type: str
    label: str = ""  # "", "optional", "repeated", "map" or "oneof"


@dataclass
class MadeFile:
    """Two messages, `Root` and `Leaf`, of fields by number."""

    messages: dict[str, dict[int, MadeField]] = field(default_factory=dict)


class ProtobufMaker:
    """Makes files and the messages of them."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def file(self) -> MadeFile:
        return MadeFile(messages={"Root": self._fields(), "Leaf": self._fields()})

    def _fields(self) -> dict[int, MadeField]:
        return {number: self._field(number) for number in self.chance.sample(range(1, 8), self.chance.randint(0, 5))}

    def _field(self, number: int) -> MadeField:
        label = self.chance.choice(["", "", "optional", "repeated", "map", "oneof"])
        return MadeField(name=f"f{number}", type=self.chance.choice(TYPES), label=label)

    def changed(self, file: MadeFile) -> MadeFile:
        """A file that differs in a field or two."""
        made = copy.deepcopy(file)
        for _ in range(self.chance.randint(1, 2)):
            fields = made.messages[self.chance.choice(["Root", "Leaf"])]
            number = self.chance.choice([*fields, 9])
            step = self.chance.choice(["remove", "add", "retype", "relabel", "rename"])
            if step == "add" or number not in fields:
                fields[number] = self._field(number)
            elif step == "remove":
                del fields[number]
            elif step == "retype":
                fields[number] = replace(fields[number], type=self.chance.choice(TYPES))
            elif step == "relabel":
                fields[number] = replace(fields[number], label=self._field(number).label)
            else:
                fields[number] = replace(fields[number], name=f"renamed{number}")
        return made

    def text(self, file: MadeFile) -> str:
        parts = ['syntax = "proto3"; package p; enum Color { NONE = 0; RED = 1; BLUE = 2; }']
        for name, fields in file.messages.items():
            lines, inside = [], []
            for number, each in fields.items():
                if each.label == "oneof":
                    inside.append(f"{each.type} {each.name} = {number};")
                elif each.label == "map":
                    lines.append(f"map<string, {each.type}> {each.name} = {number};")
                else:
                    lines.append(f"{each.label} {each.type} {each.name} = {number};")
            oneof = f"oneof choice {{ {' '.join(inside)} }}" if inside else ""
            parts.append(f"message {name} {{ {' '.join(lines)} {oneof} }}")
        return "\n".join(parts)

    def fill(self, message: Any, depth: int = 3) -> None:
        """Set some fields, to small values that every type of a group can hold."""
        for each in message.DESCRIPTOR.fields:
            if self.chance.random() < 0.4:
                continue
            is_map = each.message_type is not None and each.message_type.GetOptions().map_entry
            value = each.message_type.fields_by_name["value"] if is_map else each
            if value.message_type is not None:
                if depth > 0:
                    holder = getattr(message, each.name)
                    inner = holder["k"] if is_map else holder.add() if each.is_repeated else holder
                    inner.SetInParent()
                    self.fill(inner, depth - 1)
            elif is_map:
                getattr(message, each.name)["k"] = self._value(value)
            elif each.is_repeated:
                getattr(message, each.name).extend([self._value(each), self._value(each)])
            else:
                setattr(message, each.name, self._value(each))

    def _value(self, field: Any) -> Any:
        if field.type == field.TYPE_STRING:
            return self.chance.choice(["", "a", "é"])
        if field.type == field.TYPE_BYTES:
            return self.chance.choice([b"", b"b", "ü".encode()])
        if field.type == field.TYPE_BOOL:
            return self.chance.choice([True, False])
        return self.chance.choice([0, 1])
