"""
Random histories of a contract and its topic: versions, records of any of them, runs between, some of which fail.

The oracle is fastavro: each record as it was sent, resolved to the contract's reader schema.
"""

import io
import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any

import fastavro
from log_topic import Sent, Topic, framed

from fluvial.spark.avro import Contract, read_contract
from fluvial.tables import Declaration, compacted, count, history, last_non_null, latest, state, sum_

KEYS = ("a", "b", "c", "d")
SYMBOLS = ("RED", "GREEN", "BLUE")
PLAIN = ["int", "long", "float", "double", "string"]
PROMOTIONS = {"int": ("long", "double"), "long": ("double",), "float": ("double",)}
FIRST = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "n", "type": "int"},
        {"name": "s", "type": ["null", "string"], "default": None},
        {"name": "x0", "type": "int"},
        {"name": "x1", "type": "string"},
    ],
}


def declared(kind: str, topic: str, name: str) -> Declaration:
    """The table of a kind, keyed where it has keys by the record's key, which no field of the contract is."""
    if kind == "history":
        return history(topic, name=name)
    if kind == "compacted":
        return compacted(topic, name=name, key="id")
    fields = {"events": count(), "total": sum_("n"), "last": latest("n"), "known": last_non_null("s")}
    return state(name, topic=topic, key="id", fields=fields)


@dataclass
class ContractHistory:
    """The versions of one contract, each made from the one before by a random change."""

    rng: Random
    versions: list[dict[str, Any]] = field(default_factory=lambda: [deepcopy(FIRST)])
    _made: int = 2

    def change(self) -> dict[str, Any]:
        """Return the next version; `n` and `s`, which folds look at, are promoted at the most."""
        version = deepcopy(self.versions[-1])
        for _ in range(self.rng.randint(1, 2)):
            self.rng.choice((self._add, self._add, self._remove, self._rename, self._promote, self._default))(version)
        if version != self.versions[-1]:
            self.versions.append(version)
        return version

    def _name(self) -> str:
        self._made += 1
        return f"x{self._made}"

    def _free(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        """The fields that may be changed, those of records within among them."""
        found = [each for each in record["fields"] if each["name"] not in {"n", "s"}]
        for each in list(found):
            found += each["type"]["fields"] if _is_record(each["type"]) else []
        return found

    def _add(self, version: dict[str, Any]) -> None:
        name = self._name()
        holders = [None, *(each for each in version["fields"] if _is_record(each["type"]))]
        kind: Any = self.rng.choice(["int", "long", "float", "double", "string", "null", "enum", "array", "record"])
        default: Any = _value(self.rng, kind) if isinstance(kind, str) and kind in PLAIN else None
        if kind == "null":
            kind = ["null", self.rng.choice(["int", "string"])]
        elif kind == "enum":
            kind, default = {"type": "enum", "name": f"E{name}", "symbols": list(SYMBOLS)}, self.rng.choice(SYMBOLS)
        elif kind == "array":
            kind, default = {"type": "array", "items": "int"}, [1, 2]
        elif kind == "record":
            fields = [{"name": "y", "type": "int"}, {"name": f"{name}z", "type": "string"}]
            kind, default = {"type": "record", "name": f"R{name}", "fields": fields}, {"y": 3, f"{name}z": "d"}
        holder = None if _is_record(kind) else self.rng.choice(holders)
        if holder is not None and "default" in holder:
            # fastavro takes the default of a whole record as it stands.
            holder["default"] = {**holder["default"], name: default}
        into = version if holder is None else holder["type"]
        into["fields"].append({"name": name, "type": kind, "default": default})

    def _remove(self, version: dict[str, Any]) -> None:
        free = [each for each in version["fields"] if each["name"] not in {"n", "s"}]
        if len(free) > 1:
            version["fields"].remove(self.rng.choice(free))

    def _rename(self, version: dict[str, Any]) -> None:
        free = [each for each in version["fields"] if each["name"] not in {"n", "s"}]
        if free:
            chosen = self.rng.choice(free)
            chosen["aliases"] = [chosen["name"], *chosen.get("aliases", ())]
            chosen["name"] = self._name()

    def _promote(self, version: dict[str, Any]) -> None:
        fields = [each for each in (*version["fields"][:1], *self._free(version)) if each["type"] in PLAIN]
        fields = [
            each for each in fields if PROMOTIONS.get(each["type"]) and (each["name"], each["type"]) != ("n", "long")
        ]
        if fields:
            chosen = self.rng.choice(fields)
            chosen["type"] = "long" if chosen["name"] == "n" else self.rng.choice(PROMOTIONS[chosen["type"]])

    def _default(self, version: dict[str, Any]) -> None:
        fields = [each for each in self._free(version) if each["type"] in PLAIN]
        if fields:
            chosen = self.rng.choice(fields)
            chosen["default"] = _value(self.rng, chosen["type"])


def _is_record(kind: Any) -> bool:
    return isinstance(kind, dict) and kind["type"] == "record"


def _value(rng: Random, kind: Any) -> Any:
    if isinstance(kind, list):
        return None if rng.random() < 0.3 else _value(rng, kind[1])
    if isinstance(kind, dict):
        if kind["type"] == "enum":
            return rng.choice(kind["symbols"])
        if kind["type"] == "array":
            return [_value(rng, kind["items"]) for _ in range(rng.randint(0, 3))]
        return {each["name"]: _value(rng, each["type"]) for each in kind["fields"]}
    if kind in {"int", "long"}:
        return rng.randint(-1000, 1000)
    if kind in {"float", "double"}:
        return rng.randint(-1000, 1000) / 4
    return rng.choice(("", "one", "two"))


def records(rng: Random, versions: Mapping[int, Mapping[str, Any]], count: int) -> list[Sent]:
    """Make records of any of the registered versions, most of the newest, and tombstones."""
    ids = sorted(versions)
    found = []
    for _ in range(count):
        identity = ids[-1] if rng.random() < 0.6 else rng.choice(ids)
        key = rng.choice(KEYS)
        if rng.random() < 0.1:
            found.append(Sent(key=key, schema_id=identity))
            continue
        value = {each["name"]: _value(rng, each["type"]) for each in versions[identity]["fields"]}
        raw = framed(identity, versions[identity], value)
        found.append(Sent(key=key, raw=raw, schema_id=identity))
    return found


def resolved(topic: Topic, contract: Contract) -> Iterator[tuple[str, int, int, dict[str, Any] | None]]:
    """Key, offset, schema id and value of every record, the value as the contract's reader schema has it."""
    reader = fastavro.parse_schema(json.loads(contract.reader))
    writers = {identity: fastavro.parse_schema(json.loads(text)) for identity, text in contract.writers.items()}
    for _, offset, sent in topic.in_order():
        assert sent.key is not None
        if sent.raw is None:
            yield sent.key, offset, 0, None
            continue
        identity = int.from_bytes(sent.raw[1:5], "big")
        found = fastavro.schemaless_reader(io.BytesIO(sent.raw[5:]), writers[identity], reader)
        assert isinstance(found, dict)
        yield sent.key, offset, identity, found


def plain(value: Any) -> Any:
    """A value of Spark or of fastavro in one form."""
    if isinstance(value, bytearray):
        return bytes(value)
    if hasattr(value, "asDict"):
        value = value.asDict()
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value


def contract_of(topic: Topic) -> Contract:
    """The contract as it is registered now."""
    return read_contract(topic.schemas, topic.name)
