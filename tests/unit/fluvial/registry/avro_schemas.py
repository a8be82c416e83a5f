"""Avro schemas made at random, and small changes of them: the material of the differential tests."""

import random
from typing import Any

from fluvial.registry.formats.avro import types

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
DEFAULTS = {
    "null": (None,),
    "boolean": (True, False),
    "int": (0, -1, 2**31 - 1),
    "long": (0, 2**40),
    "float": (0, 1.5, 1e10, 0.0001),
    "double": (0, -2.25, 1e-7, 123456789.125, 1e7),
    "bytes": ("", "\u00ff\u0001"),
    "string": ("", 'é\t\u001f"\\/\u2028😀', "plain"),
}
METADATA = (
    {"doc": 'what it is: "quoted" \\u0041'},
    {"owner": {"team": ["a", 1, 2.50, None, True], "z": {"b": 1, "a": 2}}},
    {"logicalType": "made-up"},
    {"zeta": 1e21, "alpha": "x"},
)


class SchemaMaker:
    """Draws schemas from `chance`; names are drawn from few, so that two schemas often have some in common."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.defined: list[str] = []

    def schema(self, depth: int = 3) -> Any:
        kinds = ["primitive"] * 3 + (["record"] * 3 + ["enum", "fixed", "array", "map", "union"] if depth else [])
        if self.defined:
            kinds.append("name")
        match self.chance.choice(kinds):
            case "record":
                return self.record(depth)
            case "enum":
                name = self.name("E")
                symbols = self.chance.sample("ABCDEF", self.chance.randint(1, 4))
                extra = {"default": self.chance.choice(symbols)} if self.chance.random() < 0.3 else {}
                return {"type": "enum", "symbols": symbols, **name, **extra, **self.metadata()}
            case "fixed":
                return {"type": "fixed", "size": self.chance.randint(0, 3), **self.name("F"), **self.metadata()}
            case "array":
                return {"type": "array", "items": self.schema(depth - 1), **self.metadata()}
            case "map":
                return {"type": "map", "values": self.schema(depth - 1), **self.metadata()}
            case "union":
                return self.union(depth)
            case "name":
                return self.chance.choice(self.defined)
            case _:
                primitive = self.chance.choice(PRIMITIVES)
                return primitive if self.chance.random() < 0.8 else {"type": primitive, **self.metadata()}

    def union(self, depth: int) -> Any:
        branches: list[Any] = self.chance.sample(PRIMITIVES, self.chance.randint(1, 3))
        if self.chance.random() < 0.6:
            branches.append(self.record(depth - 1))
        if self.chance.random() < 0.3:
            branches.append({"type": "array", "items": self.schema(depth - 1)})
        return branches

    def record(self, depth: int) -> Any:
        shape = {"type": "record", **self.name("R")}
        fields = []
        for name in self.chance.sample("abcdefgh", self.chance.randint(0, 4)):
            schema = self.schema(depth - 1)
            field = {"name": name, "type": schema}
            if isinstance(schema, str) and schema in DEFAULTS and self.chance.random() < 0.6:
                field["default"] = self.chance.choice(DEFAULTS[schema])
            elif isinstance(schema, dict) and schema["type"] in {"array", "map"} and self.chance.random() < 0.5:
                field["default"] = [] if schema["type"] == "array" else {}
            if self.chance.random() < 0.2:
                field["aliases"] = self.chance.sample("abcdefgh", 1)
            if self.chance.random() < 0.1:
                field["order"] = self.chance.choice(["ascending", "descending", "ignore"])
            fields.append(field | self.metadata())
        return {**shape, "fields": fields, **self.metadata()}

    def name(self, stem: str) -> dict[str, Any]:
        name = f"{stem}{len(self.defined)}"
        named: dict[str, Any] = {"name": name}
        space = self.chance.choice([None, None, "n.s", "other", ""])
        if space is not None:
            named["namespace"] = space
        if self.chance.random() < 0.2:
            named["aliases"] = [self.chance.choice(["Old", "n.s.Old", "R0", "x.R1"])]
        self.defined.append(f"{space}.{name}" if space else name)
        return named

    def metadata(self) -> dict[str, Any]:
        return dict(self.chance.choice(METADATA)) if self.chance.random() < 0.1 else {}


def evolved(schema: Any, chance: random.Random) -> Any:
    """A copy of `schema` with a few changes of the kinds that producers make, allowed and not."""
    match schema:
        case list():
            branches = [evolved(each, chance) for each in schema]
            if chance.random() < 0.2 and len(branches) > 1:
                branches.pop(chance.randrange(len(branches)))
            return branches
        case str():
            promotions = {"int": "long", "long": "double", "float": "double", "string": "bytes", "bytes": "string"}
            return promotions.get(schema, schema) if chance.random() < 0.2 else schema
        case {"type": "record"}:
            fields = [each | {"type": evolved(each["type"], chance)} for each in schema["fields"]]
            if fields and chance.random() < 0.2:
                fields.pop(chance.randrange(len(fields)))
            if chance.random() < 0.3:
                added: dict[str, Any] = {"name": "added", "type": ["null", "int"]}
                fields.append(added | ({"default": None} if chance.random() < 0.6 else {}))
            renamed = {"name": schema["name"] + "x"} if chance.random() < 0.05 else {}
            return schema | {"fields": fields} | renamed
        case {"type": "enum"} if chance.random() < 0.3:
            return schema | {"symbols": sorted({*schema["symbols"], "G"})}
        case {"type": "fixed"} if chance.random() < 0.2:
            return schema | {"size": schema["size"] + 1}
        case {"type": "array"}:
            return schema | {"items": evolved(schema["items"], chance)}
        case {"type": "map"}:
            return schema | {"values": evolved(schema["values"], chance)}
        case _:
            return schema


class EndlessError(Exception):
    """A datum of this schema has no end, or none that was found."""


def datum(schema: types.Schema, chance: random.Random, depth: int = 8) -> Any:
    """A value that fastavro can write under `schema`."""
    if depth == 0:
        raise EndlessError
    match schema:
        case types.Primitive():
            return PRIMITIVE_DATA[schema.kind](chance)
        case types.Array():
            return [datum(schema.items, chance, depth - 1) for _ in range(chance.randint(0, 2))]
        case types.Map():
            return {key: datum(schema.values, chance, depth - 1) for key in chance.sample("xyz", chance.randint(0, 2))}
        case types.Fixed():
            return chance.randbytes(schema.size)
        case types.Enum():
            return chance.choice(schema.symbols)
        case types.Record():
            return {field.name: datum(field.schema, chance, depth - 1) for field in schema.fields}
        case types.Union():
            branches = list(schema.branches)
            chance.shuffle(branches)
            for branch in branches:
                try:
                    value = datum(branch, chance, depth - 1)
                except EndlessError:
                    continue
                named = isinstance(branch, types.Fixed | types.Enum | types.Record)
                return (branch.name.full, value) if named else value
            raise EndlessError


PRIMITIVE_DATA = {
    "null": lambda chance: None,
    "boolean": lambda chance: chance.random() < 0.5,
    "int": lambda chance: chance.choice([0, -1, 63, 64, -65, 2**31 - 1, -(2**31)]),
    "long": lambda chance: chance.choice([0, -1, 2**40, 2**63 - 1, -(2**63)]),
    "float": lambda chance: chance.choice([0.0, -1.5, 1e10]),
    "double": lambda chance: chance.choice([0.0, -1.5, 1e300]),
    "bytes": lambda chance: chance.randbytes(chance.choice([0, 1, 70])),
    "string": lambda chance: chance.choice(["", "plain", "é😀" * 40]),
}
