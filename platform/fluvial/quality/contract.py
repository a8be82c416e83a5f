"""Expectations that follow from an Avro contract: fields that may not be null, and the symbols of enums."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractField:
    """What a contract says of one top-level field."""

    name: str
    required: bool
    symbols: tuple[str, ...]
    """The values an enum may take; empty for a field of any other type."""


def contract_fields(schema: Mapping[str, Any]) -> Iterator[ContractField]:
    """Read the top-level fields of a record schema, resolving enums that are defined once and named later."""
    named_enums: dict[str, tuple[str, ...]] = {}
    for field in schema.get("fields", ()):
        branches = field["type"] if isinstance(field["type"], list) else [field["type"]]
        symbols: tuple[str, ...] = ()
        for branch in branches:
            if isinstance(branch, Mapping) and branch.get("type") == "enum":
                symbols = tuple(branch["symbols"])
                named_enums[branch["name"]] = symbols
            elif isinstance(branch, str) and branch in named_enums:
                symbols = named_enums[branch]
        yield ContractField(name=field["name"], required="null" not in branches, symbols=symbols)


def contract_expectations(schema: Mapping[str, Any]) -> Callable[[Any], list[Any]]:
    """Return the suite function of an Avro record schema, for `Suite.build`."""
    fields = list(contract_fields(schema))

    def build(gxe: Any) -> list[Any]:
        required = [gxe.ExpectColumnValuesToNotBeNull(column=field.name) for field in fields if field.required]
        enums = [
            gxe.ExpectColumnValuesToBeInSet(column=field.name, value_set=list(field.symbols))
            for field in fields
            if field.symbols
        ]
        return required + enums

    return build
