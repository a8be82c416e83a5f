"""
The rows of some keys in a table on this machine, and where they lie: read here, without a job of Spark's.

The columns of the key are read of each file that may hold one of the keys, and the other columns only of files that do.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from fluvial.delta.errors import DamagedFileError, LostFileError, TableError
from fluvial.delta.rows import data_file, marked_rows
from fluvial.delta.snapshot import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

Numbers = NDArray[np.int64]

# Decoded at once of the columns beside the key, of which some may be wide.
_ROWS_A_PART = 20_000
_TASKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """
    Rows of a data file by their numbers, which ascend, with the number of the key of each where keys were looked for;
    `added` is the action that added the file.
    """

    added: Mapping[str, Any]
    keys: Numbers
    numbers: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """
    Rows of a table: the columns that were asked for, for each the number of its key among those looked for, and by the
    name of a file the numbers of its rows.
    """

    rows: "pa.Table"
    keys: Numbers
    places: Mapping[str, Numbers]
    looked_for: int

    def by_key(self) -> "pa.Table":
        """
        The row of each key that was looked for, null where there is none. Raises TableError where a key has two.
        """
        import pyarrow as pa

        at = np.full(self.looked_for, -1, np.int64)
        at[self.keys] = np.arange(len(self.keys))
        if (at >= 0).sum() != len(self.keys):
            raise TableError("a key has two rows")
        return self.rows.combine_chunks().take(pa.array(at, mask=at < 0))


def find_rows(path: str, snapshot: Snapshot, keys: "pa.Table", schema: "pa.Schema") -> Found:
    """
    The rows of the different `keys` in the table at `path` at `snapshot`, with the columns of `schema`. A null is a key
    as others are.

    Raises :class:`~fluvial.delta.errors.TableError` for a data file that is missing or damaged.
    """
    places = find_places(path, snapshot, keys)
    return Found(
        rows=read_places(path, places, schema),
        keys=np.concatenate([each.keys for each in places]) if places else np.empty(0, np.int64),
        places={file_name(each.added["path"]): each.numbers for each in places},
        looked_for=keys.num_rows,
    )


def all_places(path: str, snapshot: Snapshot) -> list[Places]:
    """
    Where the rows of a table lie, whatever their keys. Raises as :func:`find_rows` does.
    """
    found = []
    for each in snapshot.added:
        with opened(path, each) as file:
            numbers = rows_there(path, each, file.metadata.num_rows)
        found.append(Places(added=each, keys=np.empty(0, np.int64), numbers=numbers))
    return found


def rows_there(path: str, added: Mapping[str, Any], rows: int) -> Numbers:
    """
    The numbers of those of the `rows` of a data file that are in the table by the action that added it.
    """
    every = np.arange(rows)
    vector = added.get("deletionVector")
    if not vector:
        return every
    return np.setdiff1d(every, np.asarray(marked_rows(path, vector).to_array(), np.int64), assume_unique=True)


def file_name(path: str) -> str:
    """
    The name of a data file whose path stands in an action.
    """
    return unquote(path).rpartition("/")[2]


def find_places(path: str, snapshot: Snapshot, keys: "pa.Table") -> list[Places]:
    """
    The files that have rows of the different `keys`, and where: only the columns of the key are read. Raises as
    :func:`find_rows` does.
    """
    look = partial(_in_file, path, KeyNumbers(keys))
    with ThreadPoolExecutor(_TASKS) as pool:
        return [each for each in pool.map(look, snapshot.added) if len(each.numbers)]


def read_places(path: str, places: Sequence[Places], schema: "pa.Schema") -> "pa.Table":
    """
    The rows at some places of a table, with the columns of `schema`. Raises as :func:`find_rows` does.
    """
    import pyarrow as pa

    if not places or not schema.names:
        return schema.empty_table()
    with ThreadPoolExecutor(_TASKS) as pool:
        return pa.concat_tables(pool.map(partial(_rows_in_file, path, schema), places))


@contextmanager
def explained_file(file: str) -> Iterator[None]:
    """
    For a ``with`` in which a data file is read: says which one cannot be, as Arrow's errors do not name it.
    """
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError as error:
        raise LostFileError(file, "is missing") from error
    except pa.ArrowInvalid as error:
        raise DamagedFileError(file, f"cannot be read ({str(error).splitlines()[0]})") from error
    except OSError as error:
        # Arrow's own is one, without a number of the system, where a file ends too early.
        if error.errno is not None:
            raise
        raise DamagedFileError(file, f"cannot be read ({str(error).splitlines()[0]})") from error


class KeyNumbers:
    """
    The numbers of some different keys. Those of several columns are found column by column: a value's number and that
    of what stands before it make a pair, and the pairs that there are have numbers again.
    """

    def __init__(self, keys: "pa.Table") -> None:
        self.schema = keys.schema
        self._steps: list[tuple[pa.Array, Numbers]] = []
        for name in keys.column_names:
            values = keys[name].combine_chunks().unique()
            pairs = self._pairs(self._codes(keys), values, keys[name])
            self._steps.append((values, np.unique(pairs)))
        self._numbers = np.argsort(self._codes(keys))

    @property
    def names(self) -> Sequence[str]:
        """The columns of the key."""
        names: Sequence[str] = self.schema.names
        return names

    def of(self, rows: "pa.Table") -> Numbers:
        """The number of the key of each row, -1 for one that is not looked for."""
        codes = self._codes(rows)
        slots = np.full(len(codes), -1, np.int64)
        slots[codes >= 0] = self._numbers[codes[codes >= 0]]
        return slots

    def _codes(self, rows: "pa.Table") -> Numbers:
        codes = np.zeros(rows.num_rows, np.int64)
        for name, (values, known) in zip(self.names, self._steps, strict=False):
            pairs = self._pairs(codes, values, rows[name])
            codes = np.searchsorted(known, pairs)
            codes[codes == len(known)] = 0
            codes[(pairs < 0) | (known[codes] != pairs if len(known) else True)] = -1
        return codes

    @staticmethod
    def _pairs(codes: Numbers, values: "pa.Array", column: "pa.ChunkedArray") -> Numbers:
        import pyarrow.compute as pc

        at = pc.fill_null(pc.index_in(column, value_set=values), -1).to_numpy().astype(np.int64)
        pairs: Numbers = np.where((codes < 0) | (at < 0), -1, codes * len(values) + at)
        return pairs


def _in_file(path: str, coded: KeyNumbers, added: Mapping[str, Any]) -> Places:
    with opened(path, added) as file:
        slots = coded.of(_as(file.read([*coded.names]), coded.schema, file.metadata.num_rows))
        vector = added.get("deletionVector")
        if vector:
            slots[np.asarray(marked_rows(path, vector).to_array(), np.int64)] = -1
    numbers = np.flatnonzero(slots >= 0)
    return Places(added=added, keys=slots[numbers], numbers=numbers)


def _rows_in_file(path: str, schema: "pa.Schema", places: Places) -> "pa.Table":
    with opened(path, places.added) as file:
        return rows_at(file, places.numbers, schema)


@contextmanager
def opened(path: str, added: Mapping[str, Any]) -> "Iterator[pq.ParquetFile]":
    """
    For a ``with``: a data file as the action that added or removed it names it. Raises as :func:`find_rows` does.
    """
    import pyarrow.parquet as pq

    name = data_file(path, added)
    with explained_file(str(name)), pq.ParquetFile(name, coerce_int96_timestamp_unit="us") as file:
        yield file


def rows_at(file: "pq.ParquetFile", numbers: Numbers, schema: "pa.Schema") -> "pa.Table":
    """
    The rows of a data file with these numbers, which ascend.
    """
    import pyarrow as pa

    parts, begin = [], 0
    for batch in file.iter_batches(batch_size=_ROWS_A_PART, columns=schema.names) if len(numbers) else ():
        first, last = np.searchsorted(numbers, (begin, begin + batch.num_rows))
        if first < last:
            part = pa.Table.from_batches([batch.take(pa.array(numbers[first:last] - begin))])
            parts.append(_as(part, schema, last - first))
        begin += batch.num_rows
    return pa.concat_tables(parts) if parts else schema.empty_table()


def _as(rows: "pa.Table", schema: "pa.Schema", count: int) -> "pa.Table":
    """So many rows of a file in the columns of a schema; a file from before a column was added does not have it."""
    import pyarrow as pa

    values = {name: rows[name] if name in rows.column_names else pa.nulls(count) for name in schema.names}
    return pa.table(values).cast(schema)
