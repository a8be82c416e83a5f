"""
Whether data that is valid under one JSON Schema is valid under another.

A schema is taken apart into what must all hold: its own words, each schema of `allOf`, `anyOf`, `oneOf`, `not`, `if`.
The newer schema takes the data when each of its parts follows from a part of the older one. Names and places of the
differences are those of Confluent's registry; where that is more lenient than JSON Schema itself, JSON Schema holds,
but for one thing: a property with a default may become required.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from fluvial.registry.formats.json_schema.containers import (
    accepts_all,
    compare_arrays,
    compare_objects,
    is_separable,
)
from fluvial.registry.formats.json_schema.difference import Difference, Fault, fault
from fluvial.registry.formats.json_schema.keywords import json_key
from fluvial.registry.formats.json_schema.parse import Node
from fluvial.registry.formats.json_schema.values import (
    compare_enumerated,
    compare_numbers,
    compare_strings,
    types_of,
)
from fluvial.registry.formats.schema_kind import Steps, TooComplexError, distinct

# Two combined schemas of n parts make n² pairs, each as much work as the two have words, names and values; beyond this
# a comparison is refused, so that nobody else waits.
STEPS_MAX = 60_000
STEP_WEIGHT = 16
PARTS_A_STEP = 10  # are put in order in the time of one step
# How deep two schemas are searched for a property in which they differ for certain.
DISJOINT_DEPTH_MAX = 3

ANNOTATIONS = frozenset(
    {
        "$schema",
        "id",
        "$id",
        "$anchor",
        "$comment",
        "title",
        "description",
        "default",
        "examples",
        "format",
        "readOnly",
        "writeOnly",
        "deprecated",
        "definitions",
        "$defs",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
    }
)
CHOICES = frozenset({"anyOf", "oneOf"})
COMBINING = frozenset({"$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else"})


class Part(NamedTuple):
    """One of the things that must hold: the `own` words of a node, or one of its combining words."""

    kind: str
    node: Node
    only_type: str | None = None  # of `own`: the part of it that has this type

    @property
    def branches(self) -> list[Node]:
        """The schemas of `anyOf` and `oneOf`."""
        found: list[Node] = self.node.words[self.kind]
        return found


def differences(reader: Node, writer: Node, steps: Steps | None = None) -> list[Difference]:
    """
    Everything that keeps data of `writer` from being valid under `reader`; empty when it is.

    Raises `TooComplexError` for schemas made to be slow to compare.
    """
    comparison = _Comparison(steps)
    try:
        while True:
            found = comparison.within(writer, reader)
            if not comparison.assumption_fails():
                return distinct(found)
    except RecursionError:
        raise TooComplexError("the schemas are nested too deeply to be compared") from None


class _Comparison:
    """
    Remembers the pairs already compared. A pair met inside itself counts as compatible; where that turns out wrong,
    everything is compared again with what is known by then.

    The differences of a pair are reported where it is met first, and the first of them wherever it is met again: of d
    schemas with two properties of the next one there are 2^d paths.
    """

    def __init__(self, whole: Steps | None) -> None:
        self.known: dict[tuple[Any, ...], list[Difference]] = {}
        self.failing: dict[tuple[Any, ...], list[Difference]] = {}
        self.open: set[tuple[Any, ...]] = set()
        self.numbers: dict[tuple[Part, ...], int] = {}
        self.assumed: set[tuple[Any, ...]] = set()
        self.steps = Steps(STEPS_MAX, "compare", whole=whole, weight=STEP_WEIGHT)

    def assumption_fails(self) -> bool:
        """Whether a pair was taken for compatible that is not; then the next pass begins with knowing so."""
        wrong = {pair: self.known[pair] for pair in self.assumed if self.known.get(pair)}
        if not wrong:
            return False
        self.failing |= wrong
        self.known.clear()
        self.assumed.clear()
        return True

    def _remembered(self, pair: tuple[Any, ...], work: Callable[[], list[Difference]]) -> list[Difference]:
        found = self.known.get(pair)
        if found is not None:
            return found[:1]
        if pair in self.open:
            if pair not in self.failing:
                self.assumed.add(pair)
            return self.failing.get(pair, [])[:1]
        self.steps.spend(1)
        self.open.add(pair)
        try:
            found = self.known[pair] = distinct(work())
        finally:
            self.open.discard(pair)
        return found

    def within(self, old: Node, new: Node) -> list[Difference]:
        """Why data of `old` is turned down by `new`."""
        old, new = old.resolved(), new.resolved()
        if old is new or old.always is False or accepts_all(new):
            return []
        if new.always is False:
            return fault(Fault.TYPE_CHANGED)
        return self._covered(tuple(parts(old)), new)

    def _covered(self, given: tuple[Part, ...], new: Node) -> list[Difference]:
        new = new.resolved()
        if accepts_all(new):
            return []
        if new.always is False:
            return fault(Fault.TYPE_CHANGED)

        def work() -> list[Difference]:
            wanted = [each for each in parts(new) if each.kind != "own" or asserts(each.node)]
            counts = [sum(each.kind == "own" and asserts(each.node) for each in side) for side in (given, wanted)]
            found = [each for part in wanted for each in self._follows(given, part)]
            if found and counts[1] > counts[0] > 0 and "allOf" in new.words:
                found += fault(Fault.PRODUCT_TYPE_EXTENDED)
            return found

        return self._remembered((given, new), work)

    def _follows(self, given: tuple[Part, ...], wanted: Part) -> list[Difference]:
        """Why `wanted` does not follow from any of `given`."""
        self.steps.spend(1 + len(given) // PARTS_A_STEP)
        likely_first = sorted(given, key=lambda each: (each.kind != wanted.kind, each.kind not in CHOICES))
        own = tuple(each for each in given if each.kind == "own")
        # Hashing the parts of an allOf again for each of them would take longer than comparing them.
        number = self.numbers.setdefault(own, len(self.numbers))
        first: list[Difference] | None = None
        for each in likely_first:
            found = self._remembered((each, number, wanted), partial(self._compare, each, own, wanted))
            if not found:
                return []
            first = found if first is None else first
        return first or fault(Fault.TYPE_CHANGED)

    def _compare(self, old: Part, own: tuple[Part, ...], new: Part) -> list[Difference]:  # noqa: PLR0911 (one return a case)
        match old.kind, new.kind:
            case "own", "own":
                return self._own(old, new.node)
            case "own", "anyOf" | "oneOf":
                return self._own_to_choice(old, new)
            case "anyOf" | "oneOf", "anyOf" | "oneOf":
                return self._choice_to_choice(old, own, new)
            case "anyOf" | "oneOf", _:
                found = [self._follows((*parts(each.resolved()), *own), new) for each in old.branches]
                return next((each for each in found if each), [])
            case "not", "not":
                inner = self.within(new.node.words["not"], old.node.words["not"])
                return fault(Fault.NOT_TYPE_EXTENDED, "not") if inner else []
            case "own", "not":
                apart = self._disjoint(old.node, new.node.words["not"])
                return [] if apart else fault(Fault.NOT_TYPE_EXTENDED, "not")
            case "if", "if":
                same = all(
                    self._equal(old.node.words.get(word), new.node.words.get(word)) for word in ("if", "then", "else")
                )
                return [] if same else fault(Fault.CONDITION_CHANGED, "if")
            case "unevaluated", "unevaluated":
                same = self._equal(old.node, new.node)
                return [] if same else self._unevaluated(new, Fault.UNEVALUATED_PROPERTIES_NARROWED)
            case _, "if":
                return fault(Fault.CONDITION_ADDED, "if")
            case _, "unevaluated":
                return self._unevaluated(new, Fault.UNEVALUATED_PROPERTIES_REMOVED)
            case _:
                return fault(Fault.TYPE_CHANGED)

    def _unevaluated(self, new: Part, kind: Fault) -> list[Difference]:
        if "unevaluatedItems" in new.node.words:
            kind = Fault(kind.replace("PROPERTIES", "ITEMS"))
        return fault(kind, "unevaluatedItems" if "ITEMS" in kind else "unevaluatedProperties")

    def _own(self, old: Part, new: Node) -> list[Difference]:
        if old.node.always is False:
            return []
        if new.always is False:
            return fault(Fault.TYPE_CHANGED)
        self.steps.spend(2 + _weight(old.node, new))
        given, wanted = types_of(old.node), types_of(new)
        if old.only_type is not None:
            given &= {old.only_type, "integer"} if old.only_type == "number" else {old.only_type}
        found: list[Difference] = []
        if not given <= wanted:
            shared = given & wanted
            found += fault(Fault.TYPE_NARROWED if shared else Fault.TYPE_CHANGED)
            if not shared:
                return found
        shared = given & wanted
        enumerated = compare_enumerated(old.node, new)
        found += [] if found and enumerated == fault(Fault.TYPE_CHANGED) else enumerated
        if "string" in shared:
            found += compare_strings(old.node.words, new.words)
        if shared & {"number", "integer"}:
            found += compare_numbers(old.node.words, new.words, only_integers="number" not in given)
        if "object" in shared:
            found += compare_objects(old.node, new, self.within)
        if "array" in shared:
            found += compare_arrays(old.node, new, self.within)
        return found

    def _own_to_choice(self, old: Part, new: Part) -> list[Difference]:
        """A schema of several types goes into a choice type by type."""
        kinds = types_of(old.node)
        names = sorted(kinds - {"integer"} if "number" in kinds else kinds)
        slices = (
            [old] if old.only_type is not None or len(names) == 1 else [Part("own", old.node, name) for name in names]
        )
        for each in slices:
            found = self._into((each,), each.node, new)
            if found:
                return found
        return []

    def _into(
        self, given: tuple[Part, ...], node: Node, new: Part, before: list[Node] | None = None
    ) -> list[Difference]:
        """Why what `given` holds for, which is of `node`, is not taken by one schema of a choice."""
        reasons: list[list[Difference]] = []
        only_type = given[0].only_type if given[0].kind == "own" else None
        for branch in new.branches:
            if self._disjoint(node, branch, only_type):
                reasons.append(fault(Fault.TYPE_CHANGED))
                continue
            reasons.append(self._covered(given, branch))
            if reasons[-1]:
                continue
            if new.kind == "anyOf":
                return []
            others = [each for each in new.branches if each is not branch]
            if all(self._apart(node, only_type, each, before or []) for each in others):
                return []
            return fault(Fault.SUM_TYPE_OVERLAPS, new.kind)
        return reasons[0] if len(reasons) == 1 else fault(Fault.TYPE_CHANGED)

    def _apart(self, node: Node, only_type: str | None, other: Node, before: list[Node]) -> bool:
        """Whether nothing of `node` is taken by `other`: for certain, or because an exclusive choice said so before."""
        if self._disjoint(node, other, only_type):
            return True
        return any(not self.within(other, each) for each in before if each.resolved() is not node.resolved())

    def _choice_to_choice(self, old: Part, own: tuple[Part, ...], new: Part) -> list[Difference]:
        if old.kind == "anyOf" and new.kind == "oneOf" and len(old.branches) > 1:
            return fault(Fault.COMBINED_TYPE_CHANGED)
        before = old.branches if old.kind == "oneOf" else []
        for index, branch in enumerate(old.branches):
            if branch.resolved().always is False:
                continue
            given = (*parts(branch.resolved()), *own)
            found = self._into(given, branch, new, before)
            if not found:
                continue
            if found[0].fault is Fault.SUM_TYPE_OVERLAPS:
                return found
            if len(old.branches) > len(new.branches):
                return fault(Fault.SUM_TYPE_NARROWED)
            if len(old.branches) == len(new.branches) == 1:
                return [each.below((f"{old.kind}/{index}",)) for each in found]
            return fault(Fault.COMBINED_TYPE_SUBSCHEMAS_CHANGED)
        return []

    def _disjoint(self, left: Node, right: Node, only_type: str | None = None, depth: int = 0) -> bool:
        """Whether it is certain that nothing is valid under both."""
        left, right = left.resolved(), right.resolved()
        if left.always is False or right.always is False:
            return True
        self.steps.spend(1 + len(left.required) + len(right.required))
        given, wanted = types_of(left), types_of(right)
        if only_type is not None:
            given &= {only_type, "integer"} if only_type == "number" else {only_type}
        if not given & wanted:
            return True
        if left.allowed is not None and right.allowed is not None:
            return not left.allowed & right.allowed
        if given & wanted != {"object"} or depth >= DISJOINT_DEPTH_MAX:
            return False
        shared = left.required & right.required
        ours, theirs = left.words.get("properties", {}), right.words.get("properties", {})
        return any(
            self._disjoint(ours[name], theirs[name], depth=depth + 1)
            for name in shared
            if name in ours and name in theirs
        )

    def _equal(self, left: Any, right: Any) -> bool:
        """Whether two schemas, or what stands in them, say the same word for word, also where they refer to others."""
        assumed: set[tuple[int, int]] = set()
        waiting = [(left, right)]
        while waiting:
            one, other = waiting.pop()
            self.steps.spend(1)
            if isinstance(one, Node) and isinstance(other, Node):
                one, other = one.resolved(), other.resolved()
                if one is other or (id(one), id(other)) in assumed:
                    continue
                assumed.add((id(one), id(other)))
                if one.always is not other.always or one.draft != other.draft:
                    return False
                words = one.words.keys() - ANNOTATIONS - {"$ref"}
                if words != other.words.keys() - ANNOTATIONS - {"$ref"}:
                    return False
                waiting += [(one.words[word], other.words[word]) for word in words]
                waiting.append((one.target, other.target))
            elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
                waiting += zip(one, other, strict=True)
            elif isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
                waiting += [(one[name], other[name]) for name in one]
            elif isinstance(one, Node | list | dict) or json_key(one) != json_key(other):
                return False
        return True


def parts(node: Node) -> Iterator[Part]:
    """What a schema is made of: all of it must hold."""
    seen: set[int] = set()
    waiting = [node]
    while waiting:
        each = waiting.pop().resolved()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield Part("own", each)
        waiting += reversed(each.words.get("allOf", []))
        if each.target is not None:
            waiting.append(each.target)
        for word in ("anyOf", "oneOf", "not"):
            if word in each.words:
                yield Part(word, each)
        if "if" in each.words and ("then" in each.words or "else" in each.words):
            yield Part("if", each)
        if not is_separable(each) and {"unevaluatedProperties", "unevaluatedItems"} & each.words.keys():
            yield Part("unevaluated", each)


def asserts(node: Node) -> bool:
    """Whether a schema's own words, without the combining ones, can turn anything down."""
    return node.always is False or bool(node.words.keys() - ANNOTATIONS - COMBINING)


def _weight(old: Node, new: Node) -> int:
    """How much there is to look at in two schemas: names are tried against patterns one by one."""
    weight = 0
    for node, other in ((old, new), (new, old)):
        names = len(node.words.get("properties", ())) + len(node.words.get("patternProperties", ()))
        weight += names * (1 + len(other.words.get("patternProperties", ())))
        weight += len(node.required) + len(node.allowed or ())
        weight += len(node.words.get("dependencies", ())) + len(node.words.get("prefixItems", ()))
    return weight
