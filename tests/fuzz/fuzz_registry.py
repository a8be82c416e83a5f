"""
Random lives of a registry beside a slow and simple model of the rules: 100,000 calls by

    python tests/fuzz/fuzz_registry.py --calls 100000 --seed 1

Subjects of all three kinds whose schemas refer to each other are registered, looked up, evolved, deleted softly and
for good, and registered again, while settings and modes change and the registry is started again from its log. The
model says the status of each answer, its id and version; what the compatibility check says is what registering does;
a registry that has read its log, compacted or not, answers as the one before. No answer is ever of status 500 and more.
"""

import argparse
import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from fluvial.registry.model.registry import Registry
from fluvial.registry.service.app import create_app
from log_broker.interfaces import InternalRecord

KINDS = ("AVRO", "JSON", "PROTOBUF")
SUBJECTS_MAX = 9
LEVELS = ("NONE", "BACKWARD", "FORWARD", "FULL", "BACKWARD_TRANSITIVE", "FULL_TRANSITIVE")
FIELDS = (("a", "text"), ("a", "number"), ("b", "text"), ("b", "number"), ("c", "maybe"), ("d", "many"), ("e", "text"))
CALLS_A_LIFE = 2_000


class Log:
    """An `InternalLog` in memory."""

    def __init__(self) -> None:
        self.records: list[InternalRecord] = []

    async def lead(self) -> int:
        return 0

    async def append(self, records: Sequence[tuple[bytes | None, bytes | None]], term: int | None = None) -> int:
        first = self.records[-1].offset + 1 if self.records else 0
        for place, (key, value) in enumerate(records):
            self.records.append(InternalRecord(offset=first + place, timestamp=0, key=key, value=value))
        return first

    async def read(self, from_offset: int = 0) -> AsyncIterator[InternalRecord]:
        for each in list(self.records):
            if each.offset >= from_offset:
                yield each

    def compacted(self) -> "Log":
        """A log of the last record of each key, with tombstones dropped."""
        last = {each.key: each for each in self.records}
        found = Log()
        found.records = sorted((each for each in last.values() if each.value is not None), key=lambda each: each.offset)
        return found


@dataclass(frozen=True, slots=True)
class Content:
    """A schema: its subject's number, its fields, and the versions of other subjects that it refers to."""

    subject: int
    fields: tuple[tuple[str, str], ...]
    references: tuple[tuple[int, int], ...]

    @property
    def text(self) -> object:
        """What is equal where the texts are."""
        return (self.fields, self.references) if KINDS[self.subject % 3] == "JSON" else self


@dataclass(slots=True)
class Version:
    """One version in the model."""

    content: Content
    id: int
    deleted: bool = False


@dataclass(slots=True)
class Model:
    """What the registry should know. Subjects are numbers; number n is of kind n modulo 3."""

    subjects: dict[int, dict[int, Version]] = field(default_factory=dict)
    highest_id: int = 0
    levels: dict[int, str] = field(default_factory=dict)
    modes: dict[int, str] = field(default_factory=dict)

    def live(self, subject: int) -> dict[int, Version]:
        return {number: each for number, each in self.subjects.get(subject, {}).items() if not each.deleted}

    def referrers(self, subject: int, version: int, *, deleted: bool) -> list[tuple[int, int]]:
        return [
            (other, number)
            for other, versions in self.subjects.items()
            for number, each in versions.items()
            if (subject, version) in each.content.references and (deleted or not each.deleted)
        ]

    def id_of(self, content: Content) -> int | None:
        """The id of an equal text: a JSON Schema does not say of which subject it is."""
        every = [each for versions in self.subjects.values() for each in versions.values()]
        return next((each.id for each in every if each.content.text == content.text), None)

    def forget(self, subject: int, version: int) -> None:
        del self.subjects[subject][version]
        if not self.subjects[subject]:
            del self.subjects[subject]

    def register(self, content: Content, *, compatible: bool) -> tuple[int, int | None, int | None]:
        """The status of the answer, the id and the version."""
        subject = content.subject
        if self.modes.get(subject) == "READONLY":
            return 422, None, None
        if any(number not in self.subjects.get(other, {}) for other, number in content.references):
            return 422, None, None
        live = self.live(subject)
        known = [number for number, each in live.items() if each.content == content]
        if known:
            return 200, live[max(known)].id, max(known)
        if not compatible:
            return 409, None, None
        every = self.subjects.setdefault(subject, {})
        version = max(every, default=0) + 1
        schema_id = self.id_of(content)
        if schema_id is None:
            self.highest_id = schema_id = self.highest_id + 1
        for number, each in list(every.items()):
            if each.deleted and each.id == schema_id and not self.referrers(subject, number, deleted=True):
                del every[number]
        every[version] = Version(content, schema_id)
        return 200, schema_id, version

    def look_up(self, content: Content) -> tuple[int, int | None]:
        live = self.live(content.subject)
        if any(number not in self.subjects.get(other, {}) for other, number in content.references):
            return 422, None
        found = [number for number, each in live.items() if each.content == content]
        return (200, max(found)) if found else (404, None)

    def delete_version(self, subject: int, version: int, *, permanent: bool) -> int:
        found = self.subjects.get(subject, {}).get(version)
        if found is None or (found.deleted and not permanent):
            return 404
        if self.modes.get(subject) == "READONLY" or self.referrers(subject, version, deleted=permanent):
            return 422
        if permanent and not found.deleted:
            return 404
        if permanent:
            self.forget(subject, version)
            self._drop_settings(subject)
        else:
            found.deleted = True
        return 200

    def delete_subject(self, subject: int, *, permanent: bool) -> int:
        versions = self.subjects.get(subject, {})
        if not versions or (not permanent and not self.live(subject)):
            return 404
        if self.modes.get(subject) == "READONLY":
            return 422
        for number in sorted(versions if permanent else self.live(subject)):
            if any(other != subject for other, _ in self.referrers(subject, number, deleted=permanent)):
                return 422
            if permanent and not versions[number].deleted:
                return 404
        if permanent:
            del self.subjects[subject]
            self._drop_settings(subject)
        else:
            for each in versions.values():
                each.deleted = True
        return 200

    def _drop_settings(self, subject: int) -> None:
        if subject not in self.subjects:
            self.levels.pop(subject, None)
            self.modes.pop(subject, None)


def name(subject: int) -> str:
    """A subject's name."""
    return f"s{subject}"


def document(content: Content, chance: random.Random) -> dict[str, Any]:
    """A request that carries a schema, laid out in one way or another."""
    kind = KINDS[content.subject % 3]
    write: Callable[[Content], str] = {"AVRO": _avro, "JSON": _json, "PROTOBUF": _protobuf}[kind]
    text = write(content)
    if kind != "PROTOBUF":
        text = json.dumps(json.loads(text), indent=chance.choice((None, 1)))
    elif chance.random() < 0.3:
        text = "// laid out in another way\n" + text.replace(";", " ;\n")
    references = [
        {"name": _reference_name(kind, other), "subject": name(other), "version": number}
        for other, number in content.references
    ]
    return {"schema": text, "schemaType": kind, "references": references}


def _reference_name(kind: str, subject: int) -> str:
    return {"AVRO": f"a.S{subject}", "JSON": f"s{subject}.json", "PROTOBUF": f"dir/s{subject}.proto"}[kind]


def _avro(content: Content) -> str:
    types: dict[str, Any] = {
        "text": "string",
        "number": "long",
        "maybe": ["null", "string"],
        "many": {"type": "array", "items": "int"},
    }
    fields: list[dict[str, Any]] = [{"name": each, "type": types[kind]} for each, kind in content.fields]
    for each in fields:
        if isinstance(each["type"], list):
            each["default"] = None
    for place, (other, _) in enumerate(content.references):
        used: Any = f"a.S{other}" if place % 2 else ["null", f"a.S{other}"]
        fields.append({"name": f"r{other}", "type": used})
    return json.dumps({"type": "record", "name": f"S{content.subject}", "namespace": "a", "fields": fields})


def _json(content: Content) -> str:
    types: dict[str, Any] = {
        "text": {"type": "string"},
        "number": {"type": "integer"},
        "maybe": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        "many": {"type": "array", "items": {"type": "number"}},
    }
    properties: dict[str, Any] = {each: types[kind] for each, kind in content.fields}
    for other, _ in content.references:
        properties[f"r{other}"] = {"$ref": f"s{other}.json"}
    required = [each for each, kind in content.fields if kind == "number"]
    return json.dumps({"type": "object", "properties": properties, "additionalProperties": False, "required": required})


def _protobuf(content: Content) -> str:
    types = {"text": "string", "number": "int64", "maybe": "optional bytes", "many": "repeated int32"}
    numbers = {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}
    lines = ['syntax = "proto3";', f"package p{content.subject};"]
    lines += [f'import "dir/s{other}.proto";' for other, _ in content.references]
    lines.append('import "google/type/date.proto";')
    members = [f"{types[kind]} {each} = {numbers[each]};" for each, kind in content.fields]
    members += [f"p{other}.M r{other} = {20 + other};" for other, _ in content.references]
    members.append("message In { google.type.Date on = 1; } In inner = 50;")
    return "\n".join([*lines, f"message M {{ {' '.join(members)} }}"])


class Life:
    """One registry, its model, and what happens to both."""

    def __init__(self, seed: str) -> None:
        self._chance = random.Random(seed)
        self._log = Log()
        self.model = Model()
        self.findings: list[str] = []
        self.calls = 0
        self.statuses: dict[tuple[str, int], int] = {}
        self._said: list[str] = []

    async def live(self, calls: int) -> None:
        """Make calls, and start the registry again now and then, until so many are made or something is found."""
        while self.calls < calls and not self.findings:
            async with _served(self._log) as http:
                await self._agrees(http, "after a start")
                for _ in range(self._chance.randrange(20, 60)):
                    if self.calls >= calls or self.findings:
                        return
                    await self._step(http)
            async with _served(self._log.compacted()) as http:
                await self._agrees(http, "after a start from a compacted log")

    async def _step(self, http: httpx.AsyncClient) -> None:
        chance = self._chance.random()
        subject = self._chance.randrange(SUBJECTS_MAX)
        if chance < 0.5:
            await self._register(http, subject)
        elif chance < 0.6:
            content = self._content(subject)
            expected, version = self.model.look_up(content)
            answer = await self._call(http, "POST", f"/subjects/{name(subject)}", document(content, self._chance))
            self._expect(answer, expected, "look up", version=version)
        elif chance < 0.85:
            await self._delete(http, subject)
        elif chance < 0.97:
            await self._settings(http, subject)
        else:
            await self._agrees(http, "in between")

    def _content(self, subject: int) -> Content:
        """A schema for a subject: new, or one that was there, or what is there with a field more or less."""
        known = [each.content for each in self.model.subjects.get(subject, {}).values()]
        if known and self._chance.random() < 0.7:
            content = self._chance.choice(known)
            fields = list(content.fields)
            how = self._chance.random()
            if how < 0.3 and len(fields) > 1:
                fields.pop(self._chance.randrange(len(fields)))
            elif how < 0.7:
                more = self._chance.choice(FIELDS)
                fields = [each for each in fields if each[0] != more[0]] + [more]
            references = content.references if self._chance.random() < 0.7 else self._references(subject)
            return Content(subject, tuple(fields), references)
        chosen = dict(self._chance.sample(FIELDS, self._chance.randrange(1, 4)))
        return Content(subject, tuple(chosen.items()), self._references(subject))

    def _references(self, subject: int) -> tuple[tuple[int, int], ...]:
        """Versions of subjects of the same kind with a lower number, now and then one that is not there."""
        found = []
        for other in range(subject % 3, subject, 3):
            versions = list(self.model.subjects.get(other, {}))
            if versions and self._chance.random() < 0.6:
                found.append((other, self._chance.choice(versions)))
            elif self._chance.random() < 0.03:
                found.append((other, 77))
        self._chance.shuffle(found)
        return tuple(found)

    async def _register(self, http: httpx.AsyncClient, subject: int) -> None:
        content = self._content(subject)
        given = document(content, self._chance)
        level = self.model.levels.get(subject, "BACKWARD")
        which = "" if level.endswith("_TRANSITIVE") else "/latest"
        checked = await self._call(http, "POST", f"/compatibility/subjects/{name(subject)}/versions{which}", given)
        answer = await self._call(http, "POST", f"/subjects/{name(subject)}/versions", given)
        compatible = checked.status_code == 200 and checked.json()["is_compatible"]
        expected, schema_id, _ = self.model.register(content, compatible=compatible)
        self._expect(answer, expected, "register", id=schema_id)

    async def _delete(self, http: httpx.AsyncClient, subject: int) -> None:
        permanent = self._chance.random() < 0.4
        query = "?permanent=true" if permanent else ""
        if self._chance.random() < 0.3:
            expected = self.model.delete_subject(subject, permanent=permanent)
            answer = await self._call(http, "DELETE", f"/subjects/{name(subject)}{query}")
            self._expect(answer, expected, "delete subject")
            return
        version = self._chance.choice([*self.model.subjects.get(subject, {}), 1, 99])
        expected = self.model.delete_version(subject, version, permanent=permanent)
        answer = await self._call(http, "DELETE", f"/subjects/{name(subject)}/versions/{version}{query}")
        self._expect(answer, expected, "delete version")

    async def _settings(self, http: httpx.AsyncClient, subject: int) -> None:
        model, path = self.model, f"/config/{name(subject)}"
        is_readonly = model.modes.get(subject) == "READONLY"
        chance = self._chance.random()
        if chance < 0.2:
            answer = await self._call(http, "DELETE", path)
            self._expect(answer, 404 if subject not in model.levels else 422 if is_readonly else 200, "delete level")
            if not is_readonly:
                model.levels.pop(subject, None)
        elif chance < 0.6:
            level = self._chance.choice(LEVELS)
            answer = await self._call(http, "PUT", path, {"compatibility": level})
            self._expect(answer, 422 if is_readonly else 200, "set level")
            if not is_readonly:
                model.levels[subject] = level
        else:
            mode = self._chance.choice(("READONLY", "READWRITE", "READWRITE", "READWRITE"))
            answer = await self._call(http, "PUT", f"/mode/{name(subject)}", {"mode": mode})
            self._expect(answer, 200, "set mode")
            model.modes[subject] = mode

    async def _agrees(self, http: httpx.AsyncClient, when: str) -> None:
        """Everything that can be read is what the model has."""
        model = self.model
        for deleted in (False, True):
            listed = (await self._call(http, "GET", f"/subjects?deleted={str(deleted).lower()}")).json()
            wanted = sorted(name(each) for each in model.subjects if deleted or model.live(each))
            self._same(listed, wanted, f"subjects {when}")
        for subject, versions in model.subjects.items():
            path = f"/subjects/{name(subject)}/versions"
            listed = (await self._call(http, "GET", f"{path}?deleted=true")).json()
            self._same(listed, sorted(versions), f"versions of {name(subject)} {when}")
            for number, each in versions.items():
                found = (await self._call(http, "GET", f"{path}/{number}?deleted=true")).json()
                self._same(found.get("id"), each.id, f"id of {name(subject)} {number} {when}")
                by_id = (await self._call(http, "GET", f"/schemas/ids/{each.id}")).json()
                self._same(by_id.get("schema"), found.get("schema"), f"text of id {each.id} {when}")
                referrers = {
                    model.subjects[other][own].id for other, own in model.referrers(subject, number, deleted=False)
                }
                told = (await self._call(http, "GET", f"{path}/{number}/referencedby")).json()
                self._same(told, sorted(referrers), f"referrers of {name(subject)} {number} {when}")
        for subject, level in model.levels.items():
            found = (await self._call(http, "GET", f"/config/{name(subject)}")).json()
            self._same(found.get("compatibilityLevel"), level, f"level of {name(subject)} {when}")

    async def _call(self, http: httpx.AsyncClient, method: str, path: str, content: Any = None) -> httpx.Response:
        self.calls += 1
        answer = await http.request(method, path, json=content) if content else await http.request(method, path)
        self._said.append(f"{method} {path} {json.dumps(content)[:2_000] if content else ''} -> {answer.status_code}")
        if answer.status_code >= 500:
            self._find(f"status {answer.status_code}: {answer.text[:500]}")
        elif answer.status_code >= 400 and answer.json().keys() != {"error_code", "message"}:
            self._find(f"an error of another form: {answer.text[:500]}")
        return answer

    def _expect(self, answer: httpx.Response, status: int, what: str, **fields: Any) -> None:
        self.statuses[what, answer.status_code] = self.statuses.get((what, answer.status_code), 0) + 1
        if answer.status_code != status:
            self._find(f"{what}: expected {status} and not {answer.status_code}: {answer.text[:500]}")
        elif status == 200:
            for key, value in fields.items():
                self._same(answer.json().get(key), value, f"{what}: {key}")

    def _same(self, found: Any, wanted: Any, what: str) -> None:
        if found != wanted:
            self._find(f"{what}: {found!r} and not {wanted!r}")

    def _find(self, what: str) -> None:
        self.findings.append("\n  ".join([what, *self._said[-12:]]))


@asynccontextmanager
async def _served(log: Log) -> AsyncIterator[httpx.AsyncClient]:
    registry = Registry(log)
    await registry.open()
    transport = httpx.ASGITransport(create_app(registry), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        yield http


async def lives(
    seed: int, calls: int, *, at_each: Callable[[int], None] = lambda calls: None
) -> tuple[list[str], dict[tuple[str, int], int]]:
    """Let registries live until so many calls are made; return what was found, and how often each status came."""
    made, number = 0, 0
    findings: list[str] = []
    statuses: dict[tuple[str, int], int] = {}
    while made < calls and len(findings) < 5:
        life = Life(f"{seed}/{number}")
        await life.live(min(CALLS_A_LIFE, calls))
        findings += [f"life {number} of seed {seed}: {each}" for each in life.findings]
        for key, count in life.statuses.items():
            statuses[key] = statuses.get(key, 0) + count
        made += life.calls
        number += 1
        at_each(made)
    return findings, statuses


def main() -> int:
    """Return 1 when anything was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().split("\n")[0])
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    findings, statuses = asyncio.run(lives(options.seed, options.calls))
    for finding in findings:
        print(finding)
    print(", ".join(f"{what} {status}: {count}" for (what, status), count in sorted(statuses.items())))
    print(f"about {options.calls} calls of seed {options.seed}: {len(findings)} findings")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
