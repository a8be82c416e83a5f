"""JSON Schemas by chance, others that differ from them a little, and values; names and numbers are few and meet."""

import json
import random
from typing import Any

URIS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}
NAMES = ["a", "b", "ab"]
TYPES = ["string", "integer", "number", "object", "array", "null", "boolean"]
VALUES: list[Any] = [None, True, False, 0, 1, 2, 3, 4, -1, 1.0, 1.5, "", "a", "b", "ab", "ba", "abc", [], {}]
INSIDE_OBJECTS = {"properties", "patternProperties", "definitions"}
LEFT_ALONE = {"dependencies", "dependentRequired", "dependentSchemas", "const", "$schema"}


class JsonSchemaMaker:
    """Makes schemas of one draft."""

    def __init__(self, chance: random.Random, draft: int) -> None:
        self.chance = chance
        self.draft = draft

    def document(self) -> dict[str, Any]:
        """A whole schema, with two definitions that it may refer to."""
        made = self.schema(3)
        body = made if isinstance(made, dict) else {}
        definitions = {"x": self.schema(1, refers=False), "y": self.schema(1, refers=False)}
        return {"$schema": URIS[self.draft], **body, "definitions": definitions}

    def schema(self, depth: int, *, refers: bool = True) -> Any:
        chance = self.chance
        if self.draft > 4 and chance.random() < 0.08:
            return chance.choice([True, False])
        if chance.random() < 0.05:
            return {}
        if refers and depth > 0 and chance.random() < 0.05:
            return {"$ref": chance.choice(["#/definitions/x", "#/definitions/y"])}
        made: dict[str, Any] = {}
        if chance.random() < 0.8:
            made["type"] = chance.choice([*TYPES, ["string", "null"], ["integer", "object"], ["number", "string"]])
        named = made.get("type", TYPES)
        types = {named} if isinstance(named, str) else set(named)
        self._values(made, types)
        if depth > 0:
            if "object" in types:
                self._object(made, depth - 1, refers)
            if "array" in types:
                self._array(made, depth - 1, refers)
            self._combined(made, depth - 1, refers)
        return made

    def _maybe(self, made: dict[str, Any], share: float, **words: Any) -> None:
        for word, make in words.items():
            if self.chance.random() < share:
                made[word.rstrip("_")] = make()

    def _small(self) -> int:
        return self.chance.randint(0, 3)

    def _values(self, made: dict[str, Any], types: set[str]) -> None:
        chance, small = self.chance, self._small
        if "string" in types:
            self._maybe(made, 0.3, maxLength=small, minLength=small)
            self._maybe(made, 0.1, pattern=lambda: chance.choice(["^a", "b$"]))
        if types & {"integer", "number"}:
            self._maybe(made, 0.3, maximum=small, minimum=small)
            self._maybe(made, 0.15, multipleOf=lambda: chance.choice([1, 2, 3]))
            if self.draft > 4:
                self._maybe(made, 0.15, exclusiveMaximum=small, exclusiveMinimum=small)
            else:
                bounded = {f"exclusiveM{each[1:]}" for each in ("maximum", "minimum") if each in made}
                self._maybe(made, 0.3, **{each: lambda: chance.choice([True, False]) for each in sorted(bounded)})
        self._maybe(made, 0.1, enum=lambda: chance.sample([1, 2, "a", "b", None, True, {"a": 1}, []], 3))
        if self.draft > 4:
            self._maybe(made, 0.05, const=lambda: chance.choice([1, "a", None]))

    def _object(self, made: dict[str, Any], depth: int, refers: bool) -> None:
        chance = self.chance

        def inner() -> Any:
            return self.schema(depth, refers=refers)

        def some() -> list[str]:
            return chance.sample(NAMES, chance.randint(1, 2))

        self._maybe(made, 0.7, properties=lambda: {name: inner() for name in some()})
        self._maybe(made, 0.3, required=some)
        self._maybe(made, 0.4, additionalProperties=lambda: chance.choice([False, inner()]))
        self._maybe(made, 0.15, patternProperties=lambda: {chance.choice(["^a", "b$", "(a|b)"]): inner()})
        self._maybe(made, 0.1, maxProperties=self._small, minProperties=self._small)
        if self.draft > 4:
            self._maybe(made, 0.07, propertyNames=lambda: chance.choice([{"maxLength": 1}, {"pattern": "^a"}]))
        if self.draft <= 7:
            self._maybe(made, 0.1, dependencies=lambda: {chance.choice(NAMES): chance.choice([some(), inner()])})
        else:
            self._maybe(made, 0.1, dependentRequired=lambda: {chance.choice(NAMES): some()})
            self._maybe(made, 0.07, dependentSchemas=lambda: {chance.choice(NAMES): inner()})
            self._maybe(made, 0.1, unevaluatedProperties=lambda: chance.choice([False, inner()]))

    def _array(self, made: dict[str, Any], depth: int, refers: bool) -> None:
        chance = self.chance

        def inner() -> Any:
            return self.schema(depth, refers=refers)

        if self.draft == 2020:
            self._maybe(made, 0.3, prefixItems=lambda: [inner() for _ in range(chance.randint(1, 2))])
            self._maybe(made, 0.5, items=inner)
        elif chance.random() < 0.4:
            made["items"] = [inner() for _ in range(chance.randint(1, 2))]
            self._maybe(made, 0.4, additionalItems=lambda: chance.choice([False, inner()]))
        else:
            self._maybe(made, 0.5, items=inner)
        if self.draft > 4:
            self._maybe(made, 0.15, contains=lambda: self.schema(0))
        if self.draft >= 2019:
            self._maybe(made, 0.1, minContains=self._small, maxContains=self._small)
            self._maybe(made, 0.1, unevaluatedItems=lambda: chance.choice([False, inner()]))
        self._maybe(made, 0.15, maxItems=self._small, minItems=self._small, uniqueItems=lambda: True)

    def _combined(self, made: dict[str, Any], depth: int, refers: bool) -> None:
        def inner() -> Any:
            return self.schema(depth, refers=refers)

        def several() -> list[Any]:
            return [inner() for _ in range(self.chance.randint(1, 3))]

        self._maybe(made, 0.1, anyOf=several, oneOf=several, allOf=several)
        self._maybe(made, 0.05, not_=inner)
        if self.draft >= 7:
            self._maybe(made, 0.05, if_=inner, then=inner)

    def changed(self, schema: Any, depth: int = 2) -> Any:
        """A schema that differs in a place or two."""
        chance = self.chance
        if not isinstance(schema, dict) or not schema or chance.random() < 0.1:
            return self.schema(max(depth, 0))
        made = json.loads(json.dumps(schema))
        word = chance.choice([each for each in made if each != "$schema"] or [""])
        value = made.get(word)
        if not word or chance.random() < 0.25:
            added = self.schema(max(depth, 0))
            if isinstance(added, dict) and "$ref" not in made:
                made |= {each: added[each] for each in list(added)[:2] if each != "$ref" and each not in made}
        elif chance.random() < 0.3 and word != "definitions":
            del made[word]
        elif word in INSIDE_OBJECTS and value:
            name = chance.choice(list(value))
            value[name] = self.changed(value[name], depth - 1)
        elif isinstance(value, dict) and word not in LEFT_ALONE:
            made[word] = self.changed(value, depth - 1)
        elif word in {"anyOf", "oneOf", "allOf", "prefixItems"} and isinstance(value, list):
            if chance.random() < 0.4:
                value.append(self.schema(max(depth - 1, 0)))
            else:
                value[0] = self.changed(value[0], depth - 1)
        elif isinstance(value, int) and not isinstance(value, bool):
            made[word] = max(1, value + chance.choice([-1, 1]))
        return made

    def value(self, depth: int = 3) -> Any:
        chance = self.chance
        if depth == 0 or chance.random() < 0.45:
            return chance.choice(VALUES)
        if chance.random() < 0.4:
            return [self.value(depth - 1) for _ in range(chance.randint(0, 3))]
        return {name: self.value(depth - 1) for name in chance.sample([*NAMES, "z"], chance.randint(0, 4))}
