"""
A table of a relational database in a topic, and from there in stores of three kinds, each built from the log alone.

Triggers write every change into an outbox in the transaction that makes it; `publish` moves the outbox into the topic,
keyed by the row's primary key, a deleted row as a tombstone. From the topic come a Delta table (`fluvial run`), a
key-value table in SQLite that keeps its offset beside its rows, and an index of the words in them.
"""

import json
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fluvial.entities import compacted

TOPIC = "customers"
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

customers = compacted(TOPIC)

Row = Mapping[str, Any]
Change = tuple[int, str, Row | None]  # offset, key, the row or None when it is gone


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


class KeyValues:
    """Rows by key in SQLite, with the offset they stand at in the same transaction: a repeated change does nothing."""

    def __init__(self, path: str) -> None:
        self._store = sqlite3.connect(path)
        self._store.execute("CREATE TABLE IF NOT EXISTS rows (key TEXT PRIMARY KEY, content TEXT NOT NULL)")
        self._store.execute("CREATE TABLE IF NOT EXISTS place (only INTEGER PRIMARY KEY, next INTEGER NOT NULL)")
        self._store.commit()

    @property
    def next_offset(self) -> int:
        """The first offset that is not in here."""
        found = self._store.execute("SELECT next FROM place").fetchone()
        return 0 if found is None else int(found[0])

    def take(self, changes: Iterable[Change]) -> None:
        """Enter changes and the place behind them, both or neither."""
        place = self.next_offset
        with self._store:
            for offset, key, row in changes:
                if offset < place:
                    continue
                if row is None:
                    self._store.execute("DELETE FROM rows WHERE key = ?", (key,))
                else:
                    self._store.execute("REPLACE INTO rows VALUES (?, ?)", (key, json.dumps(row)))
                place = offset + 1
            self._store.execute("REPLACE INTO place VALUES (0, ?)", (place,))

    def rows(self) -> dict[str, Row]:
        return {key: json.loads(content) for key, content in self._store.execute("SELECT key, content FROM rows")}

    def close(self) -> None:
        self._store.close()


class WordIndex:
    """Which keys' rows have a word, in memory: what a search engine would hold."""

    def __init__(self) -> None:
        self._words: dict[str, set[str]] = defaultdict(set)
        self._of_key: dict[str, set[str]] = {}

    def take(self, changes: Iterable[Change]) -> None:
        for _, key, row in changes:
            for word in self._of_key.pop(key, ()):
                self._words[word].discard(key)
            if row is not None:
                self._of_key[key] = {word for value in row.values() for word in str(value or "").lower().split()}
                for word in self._of_key[key]:
                    self._words[word].add(key)

    def find(self, word: str) -> set[str]:
        return set(self._words.get(word.lower(), ()))

    def __len__(self) -> int:
        return len(self._of_key)
