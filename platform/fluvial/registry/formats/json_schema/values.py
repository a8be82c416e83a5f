"""What numbers, strings and enumerations of one JSON Schema another one does not take."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from fluvial.registry.formats.json_schema.difference import Difference, Fault, fault
from fluvial.registry.formats.json_schema.keywords import TYPES
from fluvial.registry.formats.json_schema.parse import Node

Words = Mapping[str, Any]


def types_of(node: Node) -> frozenset[str]:
    """The types of the values that a schema can take, as far as its own words say; `number` implies `integer`."""
    declared = node.words.get("type")
    names = TYPES if declared is None else frozenset([declared] if isinstance(declared, str) else declared)
    if "number" in names:
        names |= {"integer"}
    return names if node.allowed_types is None else names & node.allowed_types


def compare_enumerated(old: Node, new: Node) -> list[Difference]:
    """Values that `new` does not name."""
    if new.allowed is None:
        return []
    if old.allowed is None:
        return fault(Fault.TYPE_CHANGED)
    if old.allowed <= new.allowed:
        return []
    word = "const" if "const" in new.words else "enum"
    narrowed = new.allowed <= old.allowed and word == "enum"
    return fault(Fault.ENUM_ARRAY_NARROWED if narrowed else Fault.ENUM_ARRAY_CHANGED, word)


def compare_strings(old: Words, new: Words) -> list[Difference]:
    """Strings that are too long, too short or of another pattern for `new`. Patterns are compared as texts."""
    found = at_most("maxLength", old, new, added=Fault.MAX_LENGTH_ADDED, decreased=Fault.MAX_LENGTH_DECREASED)
    found += at_least("minLength", old, new, added=Fault.MIN_LENGTH_ADDED, increased=Fault.MIN_LENGTH_INCREASED)
    pattern = new.get("pattern")
    if pattern is not None and pattern != old.get("pattern"):
        found += fault(Fault.PATTERN_CHANGED if "pattern" in old else Fault.PATTERN_ADDED, "pattern")
    return found


def compare_numbers(old: Words, new: Words, *, only_integers: bool) -> list[Difference]:
    """Numbers that are out of the bounds of `new` or no multiple of what it wants."""
    found: list[Difference] = []
    for side, added, changed, exclusive_added, exclusive_changed in (
        (
            "aximum",
            Fault.MAXIMUM_ADDED,
            Fault.MAXIMUM_DECREASED,
            Fault.EXCLUSIVE_MAXIMUM_ADDED,
            Fault.EXCLUSIVE_MAXIMUM_DECREASED,
        ),
        (
            "inimum",
            Fault.MINIMUM_ADDED,
            Fault.MINIMUM_INCREASED,
            Fault.EXCLUSIVE_MINIMUM_ADDED,
            Fault.EXCLUSIVE_MINIMUM_INCREASED,
        ),
    ):
        sign = 1 if side == "aximum" else -1
        given, given_exclusive = _bounds(old, side)
        wanted, wanted_exclusive = _bounds(new, side)
        inclusive = [sign * each for each in (given, given_exclusive) if each is not None]
        if wanted is not None and not (inclusive and min(inclusive) <= sign * wanted):
            found += fault(added if given is None else changed, f"m{side}")
        if wanted_exclusive is not None:
            limit = sign * wanted_exclusive
            below = given is not None and sign * given < limit
            within = given_exclusive is not None and sign * given_exclusive <= limit
            if not below and not within:
                kind = exclusive_added if given_exclusive is None else exclusive_changed
                found += fault(kind, f"exclusiveM{side}")
    return found + _compare_steps(old, new, only_integers)


def _bounds(words: Words, side: str) -> tuple[Any, Any]:
    """The bound that belongs to the values, and the one that does not; draft 4 says by a flag which one is meant."""
    plain, exclusive = words.get(f"m{side}"), words.get(f"exclusiveM{side}")
    if isinstance(exclusive, bool):
        return (None, plain) if exclusive else (plain, None)
    return plain, exclusive


def _compare_steps(old: Words, new: Words, only_integers: bool) -> list[Difference]:
    if "multipleOf" not in new:
        return []
    wanted = _exact(new["multipleOf"])
    if "multipleOf" not in old:
        every_integer = only_integers and (1 / wanted).denominator == 1
        return [] if every_integer else fault(Fault.MULTIPLE_OF_ADDED, "multipleOf")
    given = _exact(old["multipleOf"])
    if (given / wanted).denominator == 1:
        return []
    expanded = (wanted / given).denominator == 1
    return fault(Fault.MULTIPLE_OF_EXPANDED if expanded else Fault.MULTIPLE_OF_CHANGED, "multipleOf")


def _exact(number: float) -> Fraction:
    return Fraction(repr(number)) if isinstance(number, float) else Fraction(number)


def at_most(
    word: str, old: Words, new: Words, *, added: Fault, decreased: Fault, default: float | None = None
) -> list[Difference]:
    """A highest count that `old` does not keep to."""
    given, wanted = old.get(word, default), new.get(word)
    if wanted is None or (given is not None and given <= wanted):
        return []
    return fault(added if given is None else decreased, word)


def at_least(
    word: str, old: Words, new: Words, *, added: Fault, increased: Fault, default: float = 0
) -> list[Difference]:
    """A lowest count that `old` does not reach."""
    given, wanted = old.get(word, default), new.get(word, default)
    if given >= wanted:
        return []
    return fault(increased if word in old else added, word)
