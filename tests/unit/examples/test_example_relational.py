"""A relational table through a topic into stores that are not tables: each from the log alone, and again from it."""

import json
import sqlite3
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

import log_broker
from examples import relational, stores
from log_broker.server.embedded import EmbeddedBroker

TOPIC = "customers"


def changes(broker: EmbeddedBroker, count: int, start: int = 0) -> list[stores.Change]:
    reader = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "none", "log_level": 0})
    reader.assign([TopicPartition(TOPIC, 0, start)])
    found: list[stores.Change] = []
    while len(found) < count:
        for message in reader.consume(count - len(found), 10):
            key: Any = message.key()
            value: Any = message.value()
            found.append((message.offset() or 0, key.decode(), None if value is None else json.loads(value)))
    reader.close()
    return found


def test_a_table_becomes_a_key_value_store_and_an_index_that_are_rebuilt_and_agree(tmp_path: Path) -> None:
    source = sqlite3.connect(":memory:")
    source.executescript(relational.SOURCE)
    with log_broker.embedded(topics={TOPIC: 1}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})

        def send(key: str, row: relational.Row | None) -> None:
            producer.produce(TOPIC, None if row is None else json.dumps(row), key)
            assert producer.flush(30) == 0

        with source:
            source.executemany(
                "INSERT INTO customers VALUES (?, ?, ?)",
                [("1", "Ada Byron", "London"), ("2", "Bob Stone", None), ("3", "Cy Young", "Gilmore")],
            )
        assert relational.publish(source, send) == 3
        with source:
            source.execute("UPDATE customers SET name = 'Ada Lovelace' WHERE id = '1'")
            source.execute("DELETE FROM customers WHERE id = '2'")
            source.execute("INSERT INTO customers VALUES ('4', 'Dee Stone', 'Leeds')")
        assert relational.publish(source, send) == 3
        assert relational.publish(source, send) == 0
        expected = {row[0]: row for row in source.execute("SELECT id, name, city FROM customers")}

        def rows(store: stores.KeyValues) -> dict[str, tuple[object, ...]]:
            return {key: (row["id"], row["name"], row["city"]) for key, row in store.rows().items()}

        path = tmp_path / "values.db"
        values = stores.KeyValues(str(path))
        values.take(changes(broker, 4))
        values.close()  # it dies here, is given more than it lacks, and enters nothing twice
        values = stores.KeyValues(str(path))
        assert values.next_offset == 4
        values.take(changes(broker, 5, start=1))
        assert rows(values) == expected
        values.close()
        path.unlink()
        rebuilt = stores.KeyValues(str(path))
        rebuilt.take(changes(broker, 6))
        assert rows(rebuilt) == expected
        words = stores.WordIndex()
        words.take(changes(broker, 6))
        assert (words.find("stone"), words.find("lovelace"), words.find("byron")) == ({"4"}, {"1"}, set())
        assert len(words) == len(rows(rebuilt)) == len(expected)
        rebuilt.close()
    source.close()
