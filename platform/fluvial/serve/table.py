"""
A table whose rows are looked up by key: held open at its newest version, which follows its commits, and at others.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluvial.delta.errors import BrokenLogError, TableError
from fluvial.delta.key_index import Digests
from fluvial.delta.log import TableLog
from fluvial.delta.recent import Recent
from fluvial.delta.rows import marked_rows
from fluvial.delta.snapshot import Replay, Snapshot
from fluvial.query.lookup import lookup, lookup_all
from fluvial.query.references import INTERNAL_COLUMNS
from fluvial.query.rows import rows_of
from fluvial.query.versions import Version
from fluvial.serve.data_file import FileKeys, Kept, RowReader
from fluvial.serve.errors import NoColumnError, NoVersionError, SeveralRowsError, StaleTableError, UnreadableError
from fluvial.serve.keys import Key, arrow_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyroaring import BitMap64

VECTORS_BYTES_MAX = 32 << 20
VIEWS_MAX = 4
"""How many versions besides the newest are held."""

Row = Mapping[str, Any]
"""The columns of a row with the values that Spark gives for them: :mod:`fluvial.query.rows`."""


@dataclass(frozen=True, slots=True)
class Place:
    """
    Where a row lies: its data file and its number there. Rows of other places may be equal, one of the same place is.
    """

    file: str
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A data file at a version, with the deletion vector that it has there."""

    path: str
    keys: FileKeys
    rows: RowReader
    vector: Mapping[str, Any] | None


class _Vectors:
    """The deletion vectors of a table, of which those that were asked for lately are kept."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._recent: Recent[BitMap64] = Recent(VECTORS_BYTES_MAX)
        self._lock = threading.Lock()

    def marks(self, vector: Mapping[str, Any], row: int) -> bool:
        name = f"{vector['pathOrInlineDv']}@{vector.get('offset')}"
        with self._lock:
            found = self._recent.get(name)
            if found is None:
                try:
                    found = marked_rows(self._path, vector)
                except OSError as error:
                    raise UnreadableError(f"a deletion vector of {self._path} cannot be read: {error}") from error
                self._recent.put(name, found, vector["sizeInBytes"])
        return row in found


class View:
    """
    One version of a table. All that it gives is of this version, whatever becomes of the table meanwhile.

    `tag` is that of no other version, also where the table was made again and counts from 0; `rows` is how many it has,
    None where it does not say.
    """

    def __init__(
        self, name: str, snapshot: Snapshot, key: Key, files: Sequence[_File], *, vectors: _Vectors, tag: str
    ) -> None:
        self.name = name
        self.key = key
        self.tag = tag
        self.version = snapshot.version
        self.rows = snapshot.rows
        self.types = {each.name: each.type for each in snapshot.columns}
        self._files = files
        self._vectors = vectors

    def columns(self, wanted: Sequence[str] | None = None) -> tuple[str, ...]:
        """
        The columns that are given: those wanted, or all but internal ones. Raises :class:`NoColumnError`.
        """
        if wanted is None:
            return tuple(name for name in self.types if name not in INTERNAL_COLUMNS)
        for name in wanted:
            if name not in self.types:
                raise NoColumnError(f"{self.name} has no column {name[:200]!r}; it has {', '.join(self.types)}")
        return tuple(dict.fromkeys(wanted))

    def find(self, key: Sequence[Any]) -> Place | None:
        """
        Where the row with this key lies, as :class:`Key` reads it. Raises :class:`SeveralRowsError`.
        """
        found = self._find(key)
        return None if found is None else Place(found[0].path, found[1])

    def get(self, key: Sequence[Any], columns: Sequence[str] | None = None) -> Row | None:
        """
        The row with this key; None where there is none. Raises :class:`NoColumnError` and :class:`SeveralRowsError`.
        """
        names = self.columns(columns)
        found = self._find(key)
        return None if found is None else self._row(*found, names)

    def get_all(self, keys: Iterable[Sequence[Any]], columns: Sequence[str] | None = None) -> list[Row | None]:
        """
        The rows of several keys, in their order.
        """
        names = self.columns(columns)
        places = (self._find(key) for key in keys)
        return [None if found is None else self._row(*found, names) for found in places]

    def lookup(self, key: Sequence[Any], columns: Sequence[str] | None = None) -> str:
        """
        The statement that reads the row with this key, for whoever reads it with what the log holds behind the table.

        Raises :class:`NoColumnError`.
        """
        return lookup(self.name, self.columns(columns), self.key.parts(key))

    def lookup_all(self, keys: Sequence[Sequence[Any]], columns: Sequence[str] | None = None) -> str:
        """
        As :meth:`lookup`, of several keys at once; :meth:`in_order` tells the rows of its answer apart.
        """
        names = dict.fromkeys((*self.key.columns, *self.columns(columns)))
        return lookup_all(self.name, [*names], [self.key.parts(key) for key in keys])

    def in_order(
        self, keys: Sequence[Sequence[Any]], answer: "Iterable[pa.RecordBatch]", columns: Sequence[str] | None = None
    ) -> list[Row | None]:
        """
        The rows of keys in their order, from the answer to :meth:`lookup_all`.
        """
        names = [*self.columns(columns)]
        found: dict[str | None, Row] = {}
        for batch in answer:
            rows = rows_of([batch.select(names)])
            for text, row in zip(self.key.texts(batch), rows, strict=True):
                found.setdefault(text, dict(zip(names, row, strict=True)))
        return [found.get(self.key.text(key)) for key in keys]

    def _find(self, key: Sequence[Any]) -> tuple[_File, int] | None:
        text = self.key.text(key)
        digest = Digests.of([text]).high[0]
        found = None
        for file in self._files:
            for row in file.keys.find(digest):
                if (file.vector is None or not self._vectors.marks(file.vector, row)) and self._is(file, row, text):
                    if found is not None:
                        shown = ", ".join(f"{name} = {part}" for name, part in zip(self.key.columns, key, strict=True))
                        raise SeveralRowsError(f"several rows of {self.name} have {shown[:300]}")
                    found = file, row
        return found

    def _is(self, file: _File, row: int, text: str) -> bool:
        """Whether the row has this key and not another of the same digest, and is the one to be found."""
        batch, at = file.rows.row(row)
        one = batch.slice(at, 1)
        if self.key.only is not None and one.column(self.key.only)[0].as_py() is not True:
            return False
        return self.key.texts(one) == [text]

    def _row(self, file: _File, number: int, names: Sequence[str]) -> Row:
        batch, at = file.rows.row(number)
        has = batch.schema.names
        (values,) = rows_of([_widened(batch.slice(at, 1).select([name for name in names if name in has]), self.types)])
        row = dict(zip((name for name in names if name in has), values, strict=True))
        return row if len(row) == len(names) else {name: row.get(name) for name in names}


def demand_fresh(version: Version) -> None:
    """
    Raise :class:`StaleTableError` for a table that was to be read with what the log holds behind it, and was not.
    """
    if version.stale is not None:
        raise StaleTableError(f"{version.table} is not read with what the log holds: {version.stale}")


class ServedTable:
    """
    A table of a warehouse on this machine, used by several threads.

    `kept` is what is kept of its files; `declared` are the key columns that its owner names.
    """

    def __init__(self, name: str, path: str, kept: Kept, declared: Sequence[str] = ()) -> None:
        self.name = name
        self.path = path
        self._kept = kept
        self._declared = tuple(declared)
        self._log = TableLog(None, path)
        self._vectors = _Vectors(path)
        self._lock = threading.Lock()
        self._replay: Replay | None = None
        self._newest: View | None = None
        self._commit: tuple[int, int] | None = None
        self._opened: dict[tuple[str, Key], tuple[FileKeys, RowReader]] = {}
        self._views: OrderedDict[int, View] = OrderedDict()

    @property
    def held(self) -> View | None:
        """
        The newest version that is held open; None before the first :meth:`newest`.
        """
        return self._newest

    def newest(self) -> View:
        """
        The table's newest version. Raises :class:`~fluvial.delta.errors.TableError`, and what :class:`Key` raises.
        """
        with self._lock:
            if self._newest is None or not self._is_the_same():
                return self._load()
            if not self._commit_file(self._newest.version + 1).exists():
                return self._newest
            return self._follow()

    def is_behind(self) -> bool:
        """
        Whether there is something newer than what is held: one look at a file's name.
        """
        view = self._newest
        return view is None or not self._is_the_same() or self._commit_file(view.version + 1).exists()

    def mark(self) -> tuple[int, int, int] | None:
        """
        What tells the newest commit from every other, also of a table that was made again; None where there is none.
        """
        version = self._log.newest_version()
        told = None if version is None else self._told(version)
        return None if version is None or told is None else (version, *told)

    def at(self, version: int) -> View:
        """
        A version of the table. Raises :class:`NoVersionError` for one that there is not, or no longer.
        """
        newest = self.newest()
        if version == newest.version:
            return newest
        if version > newest.version:
            raise NoVersionError(f"{self.name} has no version {version}: the newest is {newest.version}")
        with self._lock:
            found = self._views.get(version)
            if found is None:
                try:
                    replay = Replay.at(self.path, version)
                    assert replay is not None, "a table that has a newest version"
                    found = self._view(replay.snapshot())
                except TableError as error:
                    raise NoVersionError(f"{self.name} cannot be read at version {version}: {error}") from error
                self._views[version] = found
                while len(self._views) > VIEWS_MAX:
                    self._views.popitem(last=False)
            self._views.move_to_end(version)
            return found

    def _load(self) -> View:
        self._commit = None
        self._views.clear()
        replay = Replay.at(self.path)
        if replay is None:
            raise UnreadableError(f"{self.path} holds no table any more")
        self._replay = replay
        return self._hold(replay.snapshot())

    def _follow(self) -> View:
        """Go on to the newest commit."""
        assert self._replay is not None, "what is held was replayed"
        until = self._replay.version
        while self._commit_file(until + 1).exists():
            until += 1
        try:
            self._replay.go_on(self._log, until)
            return self._hold(self._replay.snapshot())
        except BrokenLogError:
            # Cleared up meanwhile: a checkpoint has it.
            return self._load()
        except BaseException:
            # What was replayed in part, or could not be opened, is read again from the start.
            self._commit = None
            raise

    def _hold(self, snapshot: Snapshot) -> View:
        view = self._view(snapshot)
        live = {each["path"] for each in snapshot.added}
        self._opened = {of: opened for of, opened in self._opened.items() if of[0] in live}
        self._kept.forget_all_but([(each, view.key) for each in snapshot.added])
        self._commit = self._told(snapshot.version)
        self._newest = view
        return view

    def _view(self, snapshot: Snapshot) -> View:
        if snapshot.properties.get("delta.columnMapping.mode", "none") != "none":
            raise UnreadableError(
                f"the files of {self.name} name columns otherwise than it does, which only Spark reads"
            )
        key = Key.of(self.name, self.path, snapshot, self._declared)
        files = [
            _File(path=added["path"], keys=keys, rows=rows, vector=added.get("deletionVector"))
            for added in snapshot.added
            for keys, rows in [self._open(snapshot, added, key)]
        ]
        _, made_ns = self._told(snapshot.version) or (0, 0)
        return View(self.name, snapshot, key, files, vectors=self._vectors, tag=f"{snapshot.version}-{made_ns:x}")

    def _open(self, snapshot: Snapshot, added: Mapping[str, Any], key: Key) -> tuple[FileKeys, RowReader]:
        of = added["path"], key
        found = self._opened.get(of)
        if found is None:
            found = self._opened[of] = self._kept.open(snapshot, added, key)
        return found

    def _is_the_same(self) -> bool:
        """Whether the log still has the commit that is held, and none in its place."""
        view, commit = self._newest, self._commit
        return view is not None and commit is not None and self._told(view.version) == commit

    def _told(self, version: int) -> tuple[int, int] | None:
        try:
            told = self._commit_file(version).stat()
        except OSError:
            return None
        return told.st_ino, told.st_mtime_ns

    def _commit_file(self, version: int) -> Path:
        return Path(self.path) / "_delta_log" / f"{version:020d}.json"


def _widened(batch: "pa.RecordBatch", types: Mapping[str, str]) -> "pa.RecordBatch":
    """Decimals of a file as the table has them since their column was made wider."""
    for at, name in enumerate(batch.schema.names):
        kind = types[name]
        if kind.startswith("decimal(") and (wanted := arrow_type(kind)) != batch.schema.types[at]:
            batch = batch.set_column(at, name, batch.column(at).cast(wanted))
    return batch
