"""
What a driver that runs batch after batch remembers of a keyed table: where each key lies, and rows it read lately.

All of it is of one version. A commit of one's own moves it to the next; after a foreign commit, or a commit that
failed, it is read again. It never decides what is true: the transaction that uses it is refused unless the table is
still at the version that it was read from. Of a large table it is saved beside the data now and then, and what was
saved is right for the files that the table still has; only the keys of others are read by the next process.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote, urlsplit

import numpy as np

from fluvial.delta.key_index import BYTES_A_KEY, GONE, Digests, KeyIndex, RowLocations
from fluvial.delta.log import TableLog
from fluvial.delta.recent import Recent
from fluvial.delta.row_places import explained_file
from fluvial.delta.row_swap import FILE, ROW, DataFile, Swapped, data_files, located
from fluvial.delta.saved_keys import IndexedFile, SavedKeys

if TYPE_CHECKING:
    import pyarrow as pa
    from pyroaring import BitMap64
    from pyspark.sql import DataFrame, SparkSession

# Some twenty million keys; a table with more is searched by a join.
INDEX_BYTES_MAX = 768 << 20
ROWS_BYTES_MAX = 512 << 20
VECTORS_BYTES_MAX = 64 << 20
ONE_BATCH_RECORDS_MAX = 50_000
"""A driver that runs one batch has an index for so many records and, in few files, so many keys: it is made in less
time than a job of Spark's takes that looks for them in the table."""
ONE_BATCH_KEYS_MAX = 50_000
# Read at once: far fewer than Spark's driver takes as one answer (spark.driver.maxResultSize, 1 GiB).
KEYS_A_PART = 3_000_000
# Saved whenever so many keys, and an eighth of all, would have to be read again: some 2.5 µs each.
SAVED_MIN = 250_000
SAVED_SHARE = 8


class TableIndexes:
    """
    The indexes of the tables that one driver keeps up to date; with `only_small` of those on this machine that consist
    of few files.
    """

    def __init__(
        self,
        *,
        index_bytes_max: int = INDEX_BYTES_MAX,
        rows_bytes_max: int = ROWS_BYTES_MAX,
        only_small: bool = False,
    ) -> None:
        self._index_bytes_max = index_bytes_max
        self._rows_bytes_max = rows_bytes_max
        self._only_small = only_small
        self._tables: dict[str, TableIndex] = {}

    @classmethod
    def of_one_batch(cls) -> Self:
        """The indexes for a driver that runs one batch: of tables that are read in no time."""
        return cls(index_bytes_max=ONE_BATCH_KEYS_MAX * BYTES_A_KEY, only_small=True)

    def of(self, path: str, key: str, *, placed: bool, only: str | None = None) -> "TableIndex":
        """
        The index of the table at `path` by column `key`; `placed` says that rows carry `_partition` and `_offset`.

        Of a table with several rows of a key, `only` is the column that is true for the one to be found.
        """
        found = self.known(path)
        if found is None:
            found = self._tables[path] = TableIndex(
                path,
                key,
                placed=placed,
                only=only,
                index_bytes_max=self._index_bytes_max,
                rows_bytes_max=self._rows_bytes_max,
                only_small=self._only_small,
            )
        return found

    def known(self, path: str) -> "TableIndex | None":
        """The index of the table at `path`, if there is one."""
        return self._tables.get(path)


class TableIndex:
    """The index of one table; `find` and `rows` answer for the version that `load` was last asked for."""

    def __init__(
        self,
        path: str,
        key: str,
        *,
        placed: bool,
        only: str | None,
        index_bytes_max: int,
        rows_bytes_max: int,
        only_small: bool,
    ) -> None:
        self.path = path
        self.key = key
        self._only = only
        self._columns = [key, "_partition", "_offset"] if placed else [key]
        self._index_bytes_max = index_bytes_max
        self._only_small = only_small
        self._folder = _local(path)
        self._index: KeyIndex | None = None
        # Keys that were read from data files since the index was saved.
        self._unsaved = 0
        self._rows: Recent[pa.Table] = Recent(rows_bytes_max)
        self.vectors: Recent[BitMap64] = Recent(VECTORS_BYTES_MAX)

    def load(self, session: "SparkSession", version: int) -> bool:
        """
        Be the index of this version; False when the table has more keys than there is room for.
        """
        if self._index is not None and self._index.version == version:
            return True
        self.forget()
        files = None
        if self._folder is not None:
            files = data_files(session, self.path, version, without_query=self._only_small)
        if files is None and self._only_small:
            return False
        index = self._read_by_spark(session, version) if files is None else self._read_files(files, version)
        if index is None:
            return False
        self._index = index
        self._save_at_times()
        return True

    def _read_by_spark(self, session: "SparkSession", version: int) -> KeyIndex | None:
        frame = self._located(session, version)
        keys, index = frame.count(), KeyIndex(version)
        if not self._is_room_for(keys):
            return None
        self._enter_all(index, frame, max(-(-keys // KEYS_A_PART), 1))
        return self._whole(index, keys)

    def _read_files(self, files: Sequence[DataFile], version: int) -> KeyIndex | None:
        """From what is saved, as far as it goes, and then from the files; None where there is no room."""
        found = {file.name: self._counted(file) for file in files}
        keys = sum(each.found for each in found.values())
        if not self._is_room_for(keys):
            return None
        assert self._folder is not None, "files are read that are here"
        saved = SavedKeys.read(self._folder, self._about) if keys >= SAVED_MIN else None
        saved = None if saved is None else saved.still_there(found)
        index = KeyIndex(version) if saved is None else saved.index(version)
        for file in files:
            if saved is None or file.name not in saved.names:
                for rows in self._read(file.name, file.marked):
                    self._enter(index, file.name, rows)
        return self._whole(index, keys)

    def _is_room_for(self, keys: int) -> bool:
        return keys * BYTES_A_KEY <= self._index_bytes_max

    def _whole(self, index: KeyIndex, keys: int) -> KeyIndex:
        if len(index) != keys:
            raise ValueError(f"{self.path}: a key has two rows")
        return index

    def _save_at_times(self) -> None:
        """Save the index where the next process would have to read many keys again."""
        index, folder = self._index, self._folder
        if folder is None or index is None or self._unsaved < max(SAVED_MIN, len(index) // SAVED_SHARE):
            return
        SavedKeys.of(index).write(folder, self._about)
        self._unsaved = 0

    @property
    def _about(self) -> dict[str, str]:
        return {"columns": json.dumps(self._columns), "only": json.dumps(self._only)}

    def forget(self) -> None:
        """Let go of everything."""
        self._index, self._unsaved = None, 0
        self._rows.clear()

    def find(self, digests: Digests) -> RowLocations:
        """Where keys lie."""
        assert self._index is not None, "load comes first"
        return self._index.find(digests)

    def rows_by_file(self, locations: RowLocations) -> dict[str, Any]:
        """The row numbers of places by file name, those that are GONE left out."""
        assert self._index is not None, "load comes first"
        return self._index.rows_by_file(locations)

    @property
    def holds_rows(self) -> bool:
        """Whether `rows` can be asked: only where the data files can be opened from here."""
        return self._folder is not None

    def rows(self, locations: RowLocations) -> "pa.Table | None":
        """The rows at some places, each with its FILE and ROW; None when all places are GONE."""
        import pyarrow as pa

        parts = []
        for name, numbers in self.rows_by_file(locations).items():
            part = self._all_rows(name).take(numbers)
            part = part.append_column(FILE, pa.array([name] * len(numbers), pa.string()))
            parts.append(part.append_column(ROW, pa.array(numbers, pa.int64())))
        return pa.concat_tables(parts, promote_options="permissive") if parts else None

    def _all_rows(self, name: str) -> "pa.Table":
        import pyarrow.parquet as pq

        found = self._rows.get(name)
        if found is None:
            with explained_file(f"{self._folder}/{name}"):
                found = pq.read_table(f"{self._folder}/{name}").combine_chunks()
            self._rows.put(name, found, found.nbytes)
        return found

    @contextmanager
    def following(self) -> Iterator[None]:
        """Around a commit: if anything fails in it, nothing that was known is believed any more."""
        try:
            yield
        except BaseException:
            self.forget()
            raise

    def committed(self, session: "SparkSession", swapped: Swapped, gone: Digests) -> None:
        """
        Go on to the version that one's own commit made: it wrote the files that it names, and `gone` have no row left.
        """
        index = self._index
        if index is None or swapped.version != index.version + 1:
            self.forget()
            return
        nowhere = np.full(len(gone), GONE, np.int64)
        index.put(gone, RowLocations(nowhere, nowhere, nowhere, nowhere))
        self._read_back(session, index, swapped)

    def compacted(self, session: "SparkSession", log: TableLog) -> None:
        """
        Go on to the table's newest version if all that it did was to write files together.
        """
        index, version = self._index, log.newest_version()
        if index is None or version != index.version + 1 or log.commit(version).operation != "OPTIMIZE":
            return
        files = log.added_files(version)
        if files is not None:
            self._read_back(session, index, Swapped(version=version, files=tuple(files)))

    def _read_back(self, session: "SparkSession", index: KeyIndex, swapped: Swapped) -> None:
        """What stands in the files of a commit: nothing is assumed of the order that Spark wrote it in."""
        from pyspark.sql.functions import col

        for name in swapped.files:
            if self._folder is not None:
                for rows in self._read(name):
                    self._enter(index, name, rows)
            else:
                rows = self._located(session, swapped.version).where(col(FILE) == name)
                self._enter(index, name, rows.select(*self._columns, ROW).toArrow())
        index.version = swapped.version
        self._save_at_times()

    def _located(self, session: "SparkSession", version: int) -> "DataFrame":
        """The rows that are to be found, each with its FILE and ROW."""
        rows = located(session, self.path, version)
        return rows if self._only is None else rows.where(f"`{self._only}`")

    def _counted(self, file: DataFile) -> IndexedFile:
        import pyarrow.parquet as pq

        with explained_file(f"{self._folder}/{file.name}"):
            rows: int = pq.read_metadata(f"{self._folder}/{file.name}").num_rows
        found = rows - len(file.marked)
        if self._only is not None:
            found = sum(part.num_rows for part in self._read(file.name, file.marked, columns=()))
        return IndexedFile(rows=rows, marked=file.marked, found=found)

    def _read(self, name: str, marked: Any = (), *, columns: Sequence[str] | None = None) -> Iterator["pa.Table"]:
        """Columns of those rows of a local data file that are to be found, each with its ROW, part by part."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        wanted = [*(self._columns if columns is None else columns), *([] if self._only is None else [self._only])]
        path = f"{self._folder}/{name}"
        with explained_file(path), pq.ParquetFile(path) as file:
            gone = np.zeros(file.metadata.num_rows, bool)
            gone[np.asarray(marked, np.int64)] = True
            begin = 0
            for batch in file.iter_batches(batch_size=KEYS_A_PART, columns=wanted):
                numbers = np.arange(begin, begin + batch.num_rows)
                found = ~gone[numbers]
                if self._only is not None:
                    found &= batch[self._only].fill_null(False).to_numpy(zero_copy_only=False)
                begin += batch.num_rows
                rows = pa.Table.from_batches([batch]).append_column(ROW, pa.array(numbers))
                # A file that is older than a column of the table lacks it.
                for missing in set(wanted).difference(rows.column_names):
                    rows = rows.append_column(missing, pa.nulls(batch.num_rows, pa.int64()))
                yield rows if found.all() else rows.filter(found)

    def _enter(self, index: KeyIndex, name: str, rows: "pa.Table") -> None:
        files = np.full(rows.num_rows, index.file_number(name), np.int64)
        self._unsaved += rows.num_rows
        index.put(Digests.of(rows[self.key].to_pylist()), self._locations(rows, files, rows[ROW].to_numpy()))

    def _enter_all(self, index: KeyIndex, frame: "DataFrame", parts: int) -> None:
        for part in range(parts):
            # By the key, so that one with two rows is seen.
            some = frame if parts == 1 else frame.where(f"pmod(xxhash64(`{self.key}`), {parts}) = {part}")
            rows = some.select(*self._columns, FILE, ROW).toArrow()
            names = rows[FILE].combine_chunks().dictionary_encode()
            numbers = np.array([index.file_number(unquote(name.as_py())) for name in names.dictionary], np.int64)
            files = numbers[names.indices.to_numpy()] if len(names) else np.empty(0, np.int64)
            index.put(Digests.of(rows[self.key].to_pylist()), self._locations(rows, files, rows[ROW].to_numpy()))

    def _locations(self, rows: "pa.Table", files: Any, numbers: Any) -> RowLocations:
        if len(self._columns) == 1:
            nothing = np.zeros(rows.num_rows, np.int64)
            return RowLocations(files, numbers, nothing, nothing)
        return RowLocations(files, numbers, *(_locations_of(rows[name]) for name in self._columns[1:]))


def _locations_of(column: "pa.ChunkedArray") -> Any:
    # Rows that were in an adopted table come from no place, which is before all others.
    return column.fill_null(-1).to_numpy().astype(np.int64)


def frame_of(session: "SparkSession", path: str, rows: "pa.Table | None") -> "DataFrame":
    """Rows of the table at `path` with their FILE and ROW, as Spark sees them."""
    from pyspark.sql.types import LongType, StringType

    schema = session.read.format("delta").load(path).schema.add(FILE, StringType()).add(ROW, LongType())
    return session.createDataFrame([] if rows is None else rows.select(schema.names), schema)


def subset(keys: Sequence[str], which: Any) -> list[str]:
    """The keys at which a mask holds."""
    return [keys[number] for number in np.flatnonzero(which).tolist()]


def _local(path: str) -> str | None:
    parts = urlsplit(path)
    if parts.scheme not in {"", "file"}:
        return None
    return unquote(parts.path) if parts.scheme else path
