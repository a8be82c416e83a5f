"""
What the tables must hold, computed by plain Python from what was sent, one record after another.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from log_topic import Sent, Topic

from fluvial.tables import collect_set, count, count_distinct, first, last_non_null, latest, max_, mean, min_, sum_
from fluvial.tables.declare.folds import Fold

SCHEMA: Mapping[str, Any] = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "kind", "type": "string"},
        {"name": "amount", "type": ["null", "int"], "default": None},
        {"name": "weight", "type": ["null", "double"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}

FIELDS: Mapping[str, Fold] = {
    "events": count(),
    "ups": count("kind = 'up'"),
    "total": sum_("amount"),
    "up_total": sum_("amount", "kind = 'up'"),
    "lowest": min_("amount"),
    "highest": max_("amount"),
    "mean_amount": mean("amount", "kind <> 'down'"),
    "latest_amount": latest("amount"),
    "latest_up": latest("amount", "kind = 'up'"),
    "known_amount": last_non_null("amount"),
    "known_down": last_non_null("amount", "kind = 'down'"),
    "first_kind": first("kind"),
    "first_amount": first("amount", "kind = 'up'"),
    "amounts": collect_set("amount", "kind <> 'flat'"),
    "kinds": count_distinct("kind"),
}


RETURNS = (
    "events BIGINT, total DECIMAL(12, 2), weight DOUBLE, last_kind STRING, seen TIMESTAMP, recent ARRAY<INT>, "
    "kinds MAP<STRING, BIGINT>, most STRUCT<amount: INT, at: TIMESTAMP>"
)


def reduce_readings(state: dict[str, Any] | None, events: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
    """A reducer of all types of columns; a large loss ends the entity."""
    for event in events:
        if event["kind"] == "down" and (event["amount"] or 0) < -35:
            state = None
            continue
        if state is None:
            state = {"events": 0, "total": Decimal(0), "weight": None, "last_kind": None, "seen": None}
            state |= {"recent": [], "kinds": {}, "most": None}
        amount, weight = event["amount"], event["weight"]
        state["last_kind"] = event["kind"]
        if event["kind"] == "flat":
            continue
        state["events"] += 1
        state["total"] += Decimal(amount or 0) / 4
        state["weight"] = weight if state["weight"] is None else state["weight"] + (weight or 0.0)
        state["seen"] = max(filter(None, [state["seen"], event["at"]]))
        # In place: what an earlier version held must not change with it.
        state["recent"].append(amount)
        del state["recent"][:-3]
        state["kinds"][event["kind"]] = state["kinds"].get(event["kind"], 0) + 1
        if amount is not None and (state["most"] is None or amount > state["most"]["amount"]):
            state["most"] = {"amount": amount, "at": event["at"]}
    return state


def random_events(seed: int, number: int, *, partitions: int, keys: int = 12) -> list[Sent]:
    """
    Events of a few keys, each in a partition of its own; some are tombstones, some have no key.

    The first one's key does not come again: so the file that it is in always has a row that counts, and upkeep work.
    """
    dice = random.Random(seed)
    events = []
    for index in range(number):
        entity = dice.randrange(keys)
        key = "key once" if index == 0 else None if dice.random() < 0.1 else f"key {entity}"
        partition = entity % partitions if index else 0
        if index and key is not None and dice.random() < 0.08:
            events.append(Sent(key=key, partition=partition))
            continue
        value = {
            "kind": dice.choice(["up", "down", "flat"]),
            "amount": None if dice.random() < 0.3 else dice.randrange(-50, 50),
            "weight": None if dice.random() < 0.3 else dice.randrange(100) / 4,
            "at": 1_700_000_000_000 + dice.randrange(10**9),
        }
        events.append(Sent(key=key, value=value, partition=partition))
    return events


def plain_compacted(topic: Topic) -> dict[str, dict[str, Any]]:
    """The latest value of each key."""
    rows: dict[str, dict[str, Any]] = {}
    for partition, offset, record in topic.in_order():
        if record.key is None or not record.decodes:
            continue
        if record.value is None:
            rows.pop(record.key, None)
        else:
            rows[record.key] = {**record.value, "_partition": partition, "_offset": offset}
    return rows


def plain_state(topic: Topic) -> dict[str, dict[str, Any]]:
    """The fold of each key's events since its last tombstone."""
    events: dict[str, list[Mapping[str, Any]]] = {}
    for _, _, record in topic.in_order():
        if record.key is None or not record.decodes:
            continue
        if record.value is None:
            events.pop(record.key, None)
        else:
            events.setdefault(record.key, []).append(record.value)
    return {key: plain_fields(found) for key, found in events.items()}


def plain_fields(events: list[Mapping[str, Any]]) -> dict[str, Any]:
    """FIELDS over the events of one entity, in order."""

    def amounts(keep: Callable[[Mapping[str, Any]], bool] = lambda _event: True) -> list[int]:
        return [event["amount"] for event in events if keep(event) and event["amount"] is not None]

    def is_up(event: Mapping[str, Any]) -> bool:
        return bool(event["kind"] == "up")

    ups = [event for event in events if is_up(event)]
    steady = amounts(lambda event: event["kind"] != "down")
    downs = amounts(lambda event: event["kind"] == "down")
    known = amounts()
    return {
        "events": len(events),
        "ups": len(ups),
        "total": sum(known),
        "up_total": sum(amounts(is_up)),
        "lowest": min(known, default=None),
        "highest": max(known, default=None),
        "mean_amount": sum(steady) / len(steady) if steady else None,
        "latest_amount": events[-1]["amount"],
        "latest_up": ups[-1]["amount"] if ups else None,
        "known_amount": known[-1] if known else None,
        "known_down": downs[-1] if downs else None,
        "first_kind": events[0]["kind"],
        "first_amount": ups[0]["amount"] if ups else None,
        "amounts": sorted(set(amounts(lambda event: event["kind"] != "flat"))),
        "kinds": len({event["kind"] for event in events}),
    }


def plain_steps(topic: Topic) -> dict[str, list[tuple[int, int, Sent]]]:
    """The records of each key, in order."""
    found: dict[str, list[tuple[int, int, Sent]]] = {}
    for partition, offset, record in topic.in_order():
        if record.key is not None and record.decodes:
            found.setdefault(record.key, []).append((partition, offset, record))
    return found


def states_by_reducer(records: list[Sent]) -> list[dict[str, Any] | None]:
    """The state after each record, by the reducer called again with all records since the last tombstone."""
    states: list[dict[str, Any] | None] = []
    life: list[dict[str, Any]] = []
    for record in records:
        if record.value is None:
            life = []
        else:
            life.append({**record.value, "at": datetime.fromtimestamp(record.value["at"] / 1000, UTC)})
        states.append(reduce_readings(None, iter(life)) if life else None)
    return states


def states_by_fields(records: list[Sent]) -> list[dict[str, Any] | None]:
    """The state after each record, by FIELDS over all records since the last tombstone."""
    states: list[dict[str, Any] | None] = []
    life: list[Mapping[str, Any]] = []
    for record in records:
        life = [] if record.value is None else [*life, record.value]
        states.append(plain_fields(life) if life else None)
    return states


def plain_versions(
    topic: Topic, states: Callable[[list[Sent]], list[dict[str, Any] | None]], at: Callable[[Sent], int]
) -> list[dict[str, Any]]:
    """A row for each version of each entity; `at` is the time of a record with a value, in milliseconds."""
    rows: list[dict[str, Any]] = []
    for key, steps in plain_steps(topic).items():
        current: dict[str, Any] | None = None
        for (partition, offset, record), state in zip(steps, states([each for _, _, each in steps]), strict=True):
            before = None if current is None else {name: current[name] for name in state or {}}
            if state == before if current is not None else state is None:
                continue
            time_ms = record.timestamp_ms if record.value is None else at(record)
            time = datetime.fromtimestamp(time_ms / 1000, UTC)
            if current is not None:
                time = max(time, current["valid_from"])
                current |= {"valid_to": time, "is_current": False, "_end_offset": offset}
            current = None
            if state is not None:
                place = {"_partition": partition, "_offset": offset, "_end_offset": None}
                current = {"id": key, **state, "valid_from": time, "valid_to": None, "is_current": True, **place}
                rows.append(current)
    return sorted(rows, key=lambda row: (row["_partition"], row["_offset"]))
