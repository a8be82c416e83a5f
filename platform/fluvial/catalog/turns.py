"""
One after the other: who tells a catalog from this machine.

Of two that make an entry at once Unity Catalog 0.6 keeps both, and then finds neither.
"""

import threading
from pathlib import Path
from typing import Protocol

from fluvial.catalog.entry import Entry
from fluvial.catalog.errors import CatalogError
from fluvial.catalog.outcome import Outcome
from fluvial.local.lock import FolderLock

LOCK = "catalog.lock"
WAIT_SECONDS = 60.0

# The lock of a file keeps other processes off, and not other threads of this one.
_turn = threading.Lock()


class Catalog(Protocol):
    """Where tables are known by name to other engines; `needs_spark`: it is told through a Spark of this process."""

    @property
    def needs_spark(self) -> bool:
        """Whether a session has to be there."""

    def register(self, entry: Entry) -> Outcome:
        """Have the catalog know a table as it is. Raises CatalogError."""


class InTurn:
    """A catalog that waits for whoever else tells it from this data directory."""

    def __init__(self, catalog: Catalog, data_dir: Path) -> None:
        self._catalog = catalog
        self._path = data_dir / LOCK

    @property
    def needs_spark(self) -> bool:
        """Whether a session has to be there."""
        return self._catalog.needs_spark

    def register(self, entry: Entry) -> Outcome:
        """Have the catalog know a table as it is. Raises CatalogError."""
        with _turn, FolderLock(self._path) as lock:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                if not lock.acquire(WAIT_SECONDS):
                    raise CatalogError(f"another process has held {self._path} for a minute", is_away=True)
            except OSError as error:
                raise CatalogError(f"{self._path} cannot be locked: {error.strerror}", is_away=True) from error
            return self._catalog.register(entry)
