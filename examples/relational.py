"""
A table of a relational database goes through a topic into Delta, and is the same there, row for row.

    python -m examples.relational

Triggers write every change into an outbox in the transaction that makes it; `publish` moves the outbox into the topic,
keyed by the row's primary key, a deleted row as a tombstone.
"""

import json
import sqlite3
from collections.abc import Callable, Mapping
from typing import Any

from examples.program import SECONDS_MAX, Platform, main
from fluvial.tables import compacted

TOPIC = "example-customers"
SCHEMA: Mapping[str, Any] = {
    "type": "record",
    "name": "Customer",
    "fluvial.key": "id",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "name", "type": "string"},
        {"name": "city", "type": ["null", "string"], "default": None},
    ],
}
SOURCE = """
CREATE TABLE customers (id TEXT PRIMARY KEY, name TEXT NOT NULL, city TEXT);
CREATE TABLE outbox (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, content TEXT);
CREATE TRIGGER inserted AFTER INSERT ON customers BEGIN
    INSERT INTO outbox (id, content) VALUES (new.id, json_object('id', new.id, 'name', new.name, 'city', new.city));
END;
CREATE TRIGGER updated AFTER UPDATE ON customers BEGIN
    INSERT INTO outbox (id, content) VALUES (new.id, json_object('id', new.id, 'name', new.name, 'city', new.city));
END;
CREATE TRIGGER deleted AFTER DELETE ON customers BEGIN
    INSERT INTO outbox (id, content) VALUES (old.id, NULL);
END;
"""

customers = compacted(TOPIC)  # compacted.example_customers

Row = Mapping[str, Any]


def publish(source: sqlite3.Connection, send: Callable[[str, Row | None], None]) -> int:
    """
    Send every change that waits in the outbox, in order, and take it out; return how many there were.

    `send` returns once a change is acknowledged. One that was sent and is still there after a crash is sent again,
    which leaves the same rows in the end.
    """
    waiting = source.execute("SELECT number, id, content FROM outbox ORDER BY number").fetchall()
    for number, key, content in waiting:
        send(key, None if content is None else json.loads(content))
        source.execute("DELETE FROM outbox WHERE number = ?", (number,))
        source.commit()
    return len(waiting)


def changed_source() -> sqlite3.Connection:
    """Return a database after some inserts, updates and deletes; its outbox holds all of them."""
    source = sqlite3.connect(":memory:")
    source.executescript(SOURCE)
    people = ("Ada Byron", "Bob Stone", "Cy Young", "Dee Stone", "Eve Young")
    with source:
        for number in range(200):
            city = None if number % 7 == 0 else ("London", "Leeds", "New York")[number % 3]
            source.execute("INSERT INTO customers VALUES (?, ?, ?)", (str(number), people[number % 5], city))
        source.execute("UPDATE customers SET city = 'Ulm' WHERE city IS NULL AND id % 2 = 0")
        source.execute("UPDATE customers SET name = 'Ada Lovelace' WHERE name = 'Ada Byron'")
        source.execute("DELETE FROM customers WHERE city = 'Leeds' AND id % 5 = 1")
        source.execute(
            "INSERT INTO customers VALUES ('1', 'Flo Stone', NULL) ON CONFLICT DO UPDATE SET name = 'Flo Stone'"
        )
    return source


def rows_of(source: sqlite3.Connection) -> dict[str, Row]:
    """Return the table itself, by its key."""
    found = source.execute("SELECT id, name, city FROM customers")
    return {key: {"id": key, "name": name, "city": city} for key, name, city in found}


def run(platform: Platform) -> str:
    """Move the table, and compare it with the one in Delta row for row."""
    source = changed_source()
    if platform.open_topic(TOPIC, SCHEMA):
        encode, producer = platform.encoder(TOPIC), platform.producer(**{"enable.idempotence": True, "linger.ms": 0})

        def send(key: str, row: Row | None) -> None:
            producer.produce(TOPIC, None if row is None else encode(row), key)
            if producer.flush(SECONDS_MAX):
                raise RuntimeError(f"the change of {key} was not taken: it waits in the outbox")

        publish(source, send)
    platform.bring_up(customers)
    found = platform.sql("SELECT id, name, city FROM compacted.example_customers").collect()
    assert sorted(row.id for row in found) == sorted(rows_of(source))
    assert {row.id: row.asDict() for row in found} == rows_of(source)
    source.close()
    return f"{len(found)} customers in the database, and the same rows in compacted.example_customers"


if __name__ == "__main__":
    main(run)
