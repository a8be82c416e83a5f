"""A sink of each class, as its users would write it."""

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from fluvial.testing.sink_driver import Batch


class AppendedFile:
    """Lines at the end of a file; nothing tells which are there."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "rows"

    def write(self, batch: Batch) -> None:
        with self._path.open("a") as file:
            for row in batch.rows:
                file.write(f"{row.id}\n")
                file.flush()

    def ids(self) -> Iterable[int]:
        try:
            return [int(line) for line in self._path.read_text().splitlines()]
        except FileNotFoundError:
            return []


class OnceABatchNumber:
    """A file a batch, left alone when it is there: a batch that comes again with more rows loses them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, batch: Batch) -> None:
        path = self._folder / f"{batch.number}.json"
        if not path.exists():
            new = path.with_suffix(".new")
            new.write_text(json.dumps([row.id for row in batch.rows]))
            new.replace(path)

    def ids(self) -> Iterable[int]:
        return [each for path in self._folder.glob("*.json") for each in json.loads(path.read_text())]


class Upserts:
    """A table with a row an offset, written over one by one."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "rows.db"
        with closing(self._connect()) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS held (id INTEGER PRIMARY KEY, value TEXT)")

    def write(self, batch: Batch) -> None:
        with closing(self._connect()) as connection:
            for row in batch.rows:
                connection.execute("INSERT OR REPLACE INTO held VALUES (?, ?)", (row.id, row.value))

    def ids(self) -> Iterable[int]:
        with closing(self._connect()) as connection:
            return [each for (each,) in connection.execute("SELECT id FROM held")]

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=60, isolation_level=None)
        # What is tried is processes that die, not the disk.
        connection.execute("PRAGMA synchronous = OFF")
        return connection


class OffsetsInTheTransaction(Upserts):
    """Rows without a key of their own, and how far they go, in one transaction that looks first."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "rows.db"
        with closing(self._connect()) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS held (id INTEGER, value TEXT)")
            connection.execute("CREATE TABLE IF NOT EXISTS place (only INTEGER PRIMARY KEY, next INTEGER)")

    def write(self, batch: Batch) -> None:
        with closing(self._connect()) as connection:
            connection.execute("BEGIN IMMEDIATE")
            start = self._next(connection)
            if batch.start > start:
                raise ValueError(f"the rows from {start} to {batch.start - 1} are missing")
            for row in batch.rows:
                if row.offset >= start:
                    connection.execute("INSERT INTO held VALUES (?, ?)", (row.id, row.value))
            connection.execute("INSERT OR REPLACE INTO place VALUES (0, ?)", (max(start, batch.end),))
            connection.execute("COMMIT")

    def position(self) -> int:
        with closing(self._connect()) as connection:
            return self._next(connection)

    def _next(self, connection: sqlite3.Connection) -> int:
        found = connection.execute("SELECT next FROM place").fetchone()
        return int(found[0]) if found else 0


class Broken:
    """Takes in every other row."""

    def __init__(self, folder: Path) -> None:
        self._rows: list[int] = []

    def write(self, batch: Batch) -> None:
        self._rows += [row.id for row in batch.rows if row.id % 2]

    def ids(self) -> Iterable[int]:
        return self._rows
