"""
One topic feeds three stores, each made for its own questions, each built and rebuilt from the log alone.

    python -m examples.stores

From the customers of `examples.relational` come a Delta table, a key-value table in SQLite that keeps its offset beside
its rows, and an index of the words in them. What one of them lost, the log still has.
"""

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable

from examples import relational
from examples.program import Platform, main
from examples.relational import TOPIC, Row, customers
from fluvial.tables.drive.rebuild import rebuild

Change = tuple[int, str, Row | None]  # offset, key, the row or None when it is gone


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


def run(platform: Platform) -> str:
    """Build the three, then each again by itself, and reconcile them."""
    relational.run(platform)
    changes: list[Change] = list(platform.read(TOPIC))

    def delta() -> dict[str, Row]:
        rows = platform.sql("SELECT id, name, city FROM compacted.example_customers").collect()
        return {row.id: row.asDict() for row in rows}

    def key_values() -> dict[str, Row]:
        store = KeyValues(":memory:")
        for number in range(0, len(changes), 100):
            store.take(changes[number : number + 100])
        rows = store.rows()
        store.close()
        return rows

    def words() -> WordIndex:
        index = WordIndex()
        index.take(changes)
        return index

    live = delta(), key_values(), words()
    rebuild(customers, platform.settings, platform.spark)
    for table, values, index in (live, (delta(), key_values(), words())):
        assert table == values
        assert len(table) == len(values) == len(index)
        assert index.find("stone") == {key for key, row in table.items() if "Stone" in row["name"]}
    return f"{len(changes)} changes became {len(live[0])} customers in each of three stores, and again when rebuilt"


if __name__ == "__main__":
    main(run)
