"""
What is kept beside a warehouse for each data file of a table, so that a row of it is found and read in microseconds.

A data file never changes, so what was made of it is never stale: neither a commit, a deletion vector nor another
version of the table touches it. Two files stand for each:

- `.keys`: the digests of the file's keys in order, 8 bytes each, and the row of each, 4 bytes. Two keys may share a
  digest; the row that is read says which it is.
- `.rows`: the file's rows in Arrow's IPC format, not compressed. One page of Parquet takes milliseconds to decompress
  and decode for one row of it; this is mapped into memory and takes microseconds. Rows that there is no room for are
  read from Parquet, a row group at a time (:class:`ParquetRows`).
"""

import json
import mmap
import os
import struct
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from fluvial.delta.errors import DamagedFileError, LostFileError
from fluvial.delta.key_index import Digests
from fluvial.delta.recent import Recent
from fluvial.delta.rows import as_columns, data_file
from fluvial.delta.snapshot import Snapshot
from fluvial.serve.keys import Key

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

FORMAT = 1
BATCH_ROWS = 16_384
# What it is, how many keys follow, and how many bytes of JSON between this and the keys.
_HEAD = struct.Struct("<8sQQ")
_MAGIC = b"fluvkeys"
_ALIGNED = 4096
_BYTES_A_KEY = 12
_SPARED_S = 600.0


class RowReader(Protocol):
    """
    Reads rows of one data file by their numbers.
    """

    def row(self, number: int) -> "tuple[pa.RecordBatch, int]":
        """
        A batch that holds the row, and the row's number within it.
        """
        ...


class FileKeys:
    """
    The keys of one data file, mapped into memory.
    """

    def __init__(self, digests: "NDArray[np.uint64]", rows: "NDArray[np.uint32]") -> None:
        self._digests = digests
        self._rows = rows
        self._count = len(digests)

    def __len__(self) -> int:
        return self._count

    @classmethod
    def open(cls, path: Path, identity: str) -> Self | None:
        """
        The keys that were kept of a file, None where there are none or those of another.
        """
        import numpy as np

        try:
            with path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):
            return None
        try:
            magic, count, size = _HEAD.unpack_from(mapped)
            found = mapped[_HEAD.size : _HEAD.size + size].decode()
        except (struct.error, UnicodeDecodeError):
            return None
        start = _aligned(_HEAD.size + size)
        if magic != _MAGIC or found != identity or len(mapped) != start + count * _BYTES_A_KEY:
            return None
        digests = np.frombuffer(mapped, np.uint64, count, start)
        return cls(digests, np.frombuffer(mapped, np.uint32, count, start + 8 * count))

    @staticmethod
    def write(path: Path, identity: str, digests: "NDArray[np.uint64]", rows: "NDArray[np.uint32]") -> None:
        """
        Keep keys, in any order, with the rows where they lie.
        """
        digests, rows = _in_order(digests, rows)
        head = identity.encode()
        with _replacing(path) as file:
            file.write(_HEAD.pack(_MAGIC, len(digests), len(head)) + head)
            file.write(bytes(_aligned(file.tell()) - file.tell()))
            file.write(digests.data)
            file.write(rows.data)

    def find(self, digest: "np.uint64") -> "Sequence[int]":
        """
        The rows whose keys have this digest: none, one, or seldom several.
        """
        digests = self._digests
        at = int(digests.searchsorted(digest))
        if at == self._count or digests[at] != digest:
            return ()
        found = [int(self._rows[at])]
        at += 1
        while at < self._count and digests[at] == digest:
            found.append(int(self._rows[at]))
            at += 1
        return found


class MappedRows:
    """
    The rows of one data file, mapped into memory.
    """

    def __init__(self, batches: "list[pa.RecordBatch]") -> None:
        self._batches = batches
        self._starts: list[int] = []
        start = 0
        for batch in batches:
            self._starts.append(start)
            start += batch.num_rows

    @classmethod
    def open(cls, path: Path) -> Self | None:
        """
        The rows that were kept of a file; None where there are none.
        """
        import pyarrow as pa

        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            return cls([reader.get_batch(number) for number in range(reader.num_record_batches)])
        except (pa.ArrowException, OSError):
            return None

    def row(self, number: int) -> "tuple[pa.RecordBatch, int]":
        """
        A batch that holds the row, and the row's number within it.
        """
        at = bisect_right(self._starts, number) - 1
        return self._batches[at], number - self._starts[at]


class ParquetRows:
    """
    The rows of one data file as Parquet has them: a row group is decoded for the first row of it that is asked for.
    """

    def __init__(self, file: "_Source", groups: "Recent[pa.RecordBatch]", lock: threading.Lock) -> None:
        self._file = file
        self._groups = groups
        self._lock = lock
        self._starts: list[int] = []

    def row(self, number: int) -> "tuple[pa.RecordBatch, int]":
        """
        A batch that holds the row, and the row's number within it.
        """
        with self._lock:
            self._starts = self._starts or self._file.starts()
            group = bisect_right(self._starts, number) - 1
            name = f"{self._file.path}#{group}"
            found = self._groups.get(name)
            if found is None:
                (found,) = self._file.group(group).combine_chunks().to_batches()
                self._groups.put(name, found, found.nbytes)
        return found, number - self._starts[group]


class _Source:
    """A data file as Parquet, with the table's columns that it has."""

    def __init__(self, table: str, snapshot: Snapshot, added: Mapping[str, Any]) -> None:
        self.path = data_file(table, added)
        self._added = added
        self._types = {each.name: each.type for each in snapshot.columns}

    def batches(self, only: Sequence[str] | None = None) -> "Iterator[pa.RecordBatch]":
        with self._opened() as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=self._read(file, only)):
                yield from self._shaped(batch, only).to_batches()

    def group(self, number: int) -> "pa.Table":
        with self._opened() as file:
            return self._shaped(file.read_row_group(number, columns=self._read(file, None)), None)

    def starts(self) -> list[int]:
        """The first row of each row group."""
        with self._opened() as file:
            metadata = file.metadata
            counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        return [sum(counts[:number]) for number in range(len(counts))]

    def _read(self, file: Any, only: Sequence[str] | None) -> list[str]:
        has = file.schema_arrow.names
        found = [name for name in self._types if name in has and (only is None or name in only)]
        # Something must say how many rows there are where all that is wanted stands in the file's path.
        return found or [next(name for name in self._types if name in has)]

    def _shaped(self, rows: "pa.RecordBatch | pa.Table", only: Sequence[str] | None) -> "pa.Table":
        import pyarrow as pa

        table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
        return as_columns(table, self._added, [*(self._types if only is None else only)], self._types)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(self.path, coerce_int96_timestamp_unit="us") as file:
                yield file
        except FileNotFoundError as error:
            raise LostFileError(str(self.path), "is missing") from error
        except (pa.ArrowInvalid, OSError) as error:
            raise DamagedFileError(str(self.path), f"cannot be read ({str(error).splitlines()[0]})") from error


class Kept:
    """
    What is kept of the data files of one table in a folder of its own, at most `copied_bytes_max` of them as rows.

    `path` is the table's folder. Used by several threads; several processes may share the folder.
    """

    def __init__(self, folder: Path, path: str, *, copied_bytes_max: int, groups_bytes_max: int) -> None:
        self._folder = folder
        self._path = path
        self._copied_bytes_max = copied_bytes_max
        self._groups: Recent[pa.RecordBatch] = Recent(groups_bytes_max)
        self._lock = threading.Lock()

    def open(self, snapshot: Snapshot, added: Mapping[str, Any], key: Key) -> tuple[FileKeys, RowReader]:
        """
        The keys and the rows of a data file, made where they are not kept yet.

        Raises :class:`~fluvial.delta.errors.TableFileError` for a file that is gone or cannot be read. A folder that
        cannot be written costs the keys' memory, and rows are read from Parquet.
        """
        source = _Source(self._path, snapshot, added)
        identity = _identity(added, key)
        name = _name(identity)
        keys_path, rows_path = self._folder / f"{name}.keys", self._folder / f"{name}.rows"
        keys, rows = FileKeys.open(keys_path, identity), MappedRows.open(rows_path)
        copies = rows is None and self._has_room(added)
        if keys is None or copies:
            keys = self._made(source, key, identity, keys_path, rows_path if copies else None)
            rows = MappedRows.open(rows_path)
        return keys, rows if rows is not None else ParquetRows(source, self._groups, self._lock)

    def forget_all_but(self, wanted: Sequence[tuple[Mapping[str, Any], Key]]) -> None:
        """
        Remove what is kept of other data files. Who has it mapped goes on reading it.
        """
        names = {_name(_identity(*each)) for each in wanted}
        now = time.time()
        with suppress(OSError):
            for entry in os.scandir(self._folder):
                if entry.name.partition(".")[0] not in names:
                    with suppress(OSError):
                        # Another process may have seen a later version of the table.
                        if now - entry.stat().st_mtime > _SPARED_S:
                            os.unlink(entry.path)

    def _has_room(self, added: Mapping[str, Any]) -> bool:
        """Whether there is room for the rows of one more file, which take a few times as much as in Parquet."""
        taken = 0
        with suppress(OSError):
            taken = sum(entry.stat().st_size for entry in os.scandir(self._folder) if entry.name.endswith(".rows"))
        return taken + 3 * int(added.get("size") or 0) <= self._copied_bytes_max

    def _made(self, source: _Source, key: Key, identity: str, path: Path, rows_path: Path | None) -> FileKeys:
        """Read a data file, and keep its keys and, where a path is given, its rows."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with _Copy(rows_path) as copy:
                found = _digests(key, source.batches(None if rows_path is not None else key.columns), copy.write)
            FileKeys.write(path, identity, *found)
        except OSError:
            return FileKeys(*_in_order(*_digests(key, source.batches(key.columns), lambda _: None)))
        return FileKeys.open(path, identity) or FileKeys(*_in_order(*found))


def _digests(
    key: Key, batches: "Iterable[pa.RecordBatch]", also: "Callable[[pa.RecordBatch], None]"
) -> "tuple[NDArray[np.uint64], NDArray[np.uint32]]":
    """The digests of the keys of batches, and their rows; `also` is given each batch."""
    import numpy as np

    digests, rows, start = [np.empty(0, np.uint64)], [np.empty(0, np.uint32)], 0
    for batch in batches:
        texts = key.texts(batch)
        digests.append(Digests.of(text for text in texts if text is not None).high)
        rows.append(np.array([at for at, text in enumerate(texts, start) if text is not None], np.uint32))
        start += batch.num_rows
        also(batch)
    return np.concatenate(digests), np.concatenate(rows)


def _in_order(
    digests: "NDArray[np.uint64]", rows: "NDArray[np.uint32]"
) -> "tuple[NDArray[np.uint64], NDArray[np.uint32]]":
    import numpy as np

    order = np.argsort(digests, kind="stable")
    return np.ascontiguousarray(digests[order]), np.ascontiguousarray(rows[order])


class _Copy:
    """A file of rows that is being written; without a path nothing is."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._stack: Any = None
        self._file: Any = None
        self._writer: Any = None

    def __enter__(self) -> Self:
        if self._path is not None:
            self._stack = _replacing(self._path)
            self._file = self._stack.__enter__()
        return self

    def write(self, batch: "pa.RecordBatch") -> None:
        import pyarrow as pa

        if self._file is not None:
            self._writer = self._writer or pa.ipc.new_file(self._file, batch.schema)
            self._writer.write_batch(batch)

    def __exit__(self, *raised: Any) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._stack is not None:
            self._stack.__exit__(*raised)


@contextmanager
def _replacing(path: Path) -> Iterator[Any]:
    """A file that takes its name when all of it is written and on disk."""
    draft = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()


def _identity(added: Mapping[str, Any], key: Key) -> str:
    """What is the same of what was kept only where it is of the same file and key."""
    partition = dict(added.get("partitionValues") or {})
    return json.dumps([FORMAT, added["path"], added.get("size"), partition, key.columns, key.kinds])


def _name(identity: str) -> str:
    return blake2b(identity.encode(), digest_size=16).hexdigest()


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
