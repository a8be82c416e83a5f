"""
Expectations that follow from an Avro contract: fields that may not be null, the symbols of enums, and declared rules.

A field, or its type, may declare rules as properties; null breaks none of them:

    {"name": "distance", "type": "int", "fluvial.min": 0, "fluvial.max": 20000}
    {"name": "origin", "type": "string", "fluvial.pattern": "[A-Z]{3}"}
    {"name": "unit", "type": ["null", "string"], "fluvial.values": ["kg", "lb"]}
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MIN = "fluvial.min"
MAX = "fluvial.max"
PATTERN = "fluvial.pattern"
VALUES = "fluvial.values"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractField:
    """
    What a contract says of one top-level field.

    `least` and `most` are inclusive bounds, `pattern` a regular expression for the whole text.
    """

    name: str
    required: bool
    symbols: tuple[Any, ...]
    """The values an enum may take, or the declared ones; empty where any will do."""
    least: Any = None
    most: Any = None
    pattern: str | None = None


def contract_fields(schema: Mapping[str, Any]) -> Iterator[ContractField]:
    """Read the top-level fields of a record schema, resolving enums that are defined once and named later."""
    named_enums: dict[str, tuple[str, ...]] = {}
    for field in schema.get("fields", ()):
        branches = field["type"] if isinstance(field["type"], list) else [field["type"]]
        symbols: tuple[Any, ...] = ()
        rules: dict[str, Any] = {}
        for branch in branches:
            if isinstance(branch, Mapping):
                rules |= branch
                if branch.get("type") == "enum":
                    symbols = tuple(branch["symbols"])
                    named_enums[branch["name"]] = symbols
            elif isinstance(branch, str) and branch in named_enums:
                symbols = named_enums[branch]
        rules |= field
        yield ContractField(
            name=field["name"],
            required="null" not in branches,
            symbols=tuple(rules.get(VALUES, symbols)),
            least=rules.get(MIN),
            most=rules.get(MAX),
            pattern=rules.get(PATTERN),
        )


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
        ranges = [
            gxe.ExpectColumnValuesToBeBetween(column=field.name, min_value=field.least, max_value=field.most)
            for field in fields
            if field.least is not None or field.most is not None
        ]
        patterns = [
            gxe.ExpectColumnValuesToMatchRegex(column=field.name, regex=f"^(?:{field.pattern})$")
            for field in fields
            if field.pattern is not None
        ]
        return required + enums + ranges + patterns

    return build
