"""
The tables of a warehouse on this machine whose rows are looked up by key, opened when they are first asked for.
"""

import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fluvial.errors import FluvialError
from fluvial.serve.data_file import Kept
from fluvial.serve.errors import NoTableError
from fluvial.serve.table import ServedTable
from fluvial.spark.warehouse import SERVED, Warehouse

COPIED_BYTES_MAX = 20 << 30
GROUPS_BYTES_MAX = 128 << 20


class ServedWarehouse:
    """
    The tables at a warehouse's location. `keys` are key columns by table, for those that do not say themselves.

    What is kept of data files lies in `kept_in`, by default a folder in the warehouse, or, where that cannot be
    written, one of this process's own. At most `copied_bytes_max` of each table are kept as rows.
    """

    def __init__(
        self,
        location: str,
        *,
        keys: Mapping[str, Sequence[str]] | None = None,
        kept_in: Path | None = None,
        copied_bytes_max: int = COPIED_BYTES_MAX,
    ) -> None:
        warehouse = Warehouse.at(location)
        if warehouse.local is None:
            raise FluvialError(
                f"the tables in {warehouse.root} are not on this machine, and rows are looked up by key only there"
            )
        self.root: Path = warehouse.local
        self._warehouse = warehouse
        self._keys = dict(keys or {})
        self._copied_bytes_max = copied_bytes_max
        self._own: tempfile.TemporaryDirectory[str] | None = None
        self._kept_in = kept_in or self._folder()
        self._tables: dict[str, ServedTable] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """
        The names of the tables there are.
        """
        return self._warehouse.tables()

    def opened(self) -> list[ServedTable]:
        """
        The tables that were asked for.
        """
        return [*self._tables.values()]

    def table(self, name: str) -> ServedTable:
        """
        A table by its name. Raises :class:`NoTableError`.
        """
        found = self._tables.get(name)
        if found is not None:
            return found
        # The name comes from outside: only what is listed becomes a path.
        known = self.names()
        if name not in known:
            raise NoTableError(name, known)
        with self._lock:
            found = self._tables.get(name)
            if found is None:
                kept = Kept(
                    self._kept_in / name,
                    self._path(name),
                    copied_bytes_max=self._copied_bytes_max,
                    groups_bytes_max=GROUPS_BYTES_MAX,
                )
                found = self._tables[name] = ServedTable(name, self._path(name), kept, self._keys.get(name, ()))
            return found

    def close(self) -> None:
        """
        Remove what is of this process alone.
        """
        if self._own is not None:
            self._own.cleanup()

    def _path(self, name: str) -> str:
        return f"{self.root}/{name.replace('.', '/')}"

    def _folder(self) -> Path:
        folder = self.root / SERVED
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
        self._own = tempfile.TemporaryDirectory(prefix="fluvial-serve-", ignore_cleanup_errors=True)
        return Path(self._own.name)
