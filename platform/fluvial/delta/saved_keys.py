"""
The index of a table's keys as a file beside its data, so that the next process need not read every key again.

It says which key each row of some data files has. Data files never change: what it says of a file stays true as long as
the table has that file, whatever was committed since. Which of the rows are still there, the table says itself.
"""

import logging
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Self

import numpy as np

from fluvial.delta.key_index import Digests, KeyIndex, RowLocations

# Delta, and what cleans up after it, leaves names alone that begin with an underscore.
NAME = "_fluvial_keys"
_FORMAT = "1"
_CHECKSUM_SIZE = 16
# What is older was left by a process that was killed while it saved.
_LEFT_AFTER_S = 3600
_COLUMNS = ("high", "low", "row", "partition", "offset")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedFile:
    """
    A data file of a table: its number of rows, those that are marked as gone, and how many the index is to find.
    """

    rows: int
    marked: Any
    found: int


@dataclass(frozen=True, slots=True)
class SavedKeys:
    """
    What was saved: keys in the order of their digests, and where each lies; `file` is the place in `names`.
    """

    names: Sequence[str]
    digests: Digests
    locations: RowLocations

    @classmethod
    def of(cls, index: KeyIndex) -> Self:
        return cls(index.file_names, *index.entries())

    def write(self, folder: str, about: Mapping[str, str]) -> None:
        """
        Save beside the table in `folder`, in one step; a disk that is full is no error. `about` says what is indexed.
        """
        import pyarrow as pa

        numbers = pa.array(self.locations.file.astype(np.int32, copy=False))
        columns = (self.digests.high, self.digests.low, *(getattr(self.locations, name) for name in _COLUMNS[2:]))
        file = pa.DictionaryArray.from_arrays(numbers, pa.array(self.names, pa.string()))
        table = pa.table({**dict(zip(_COLUMNS, columns, strict=True)), "file": file})
        temporary = Path(folder, f"{NAME}.{uuid.uuid4()}")
        try:
            _remove_left(folder)
            with temporary.open("w+b") as written:
                written.write(bytes(_CHECKSUM_SIZE))
                with pa.ipc.new_stream(written, table.schema.with_metadata({"format": _FORMAT, **about})) as stream:
                    stream.write_table(table)
                written.flush()
                with mmap(written.fileno(), 0, access=ACCESS_READ) as whole, memoryview(whole) as view:
                    checksum = _checksum(view[_CHECKSUM_SIZE:])
                written.seek(0)
                written.write(checksum)
            os.replace(temporary, Path(folder, NAME))
        except OSError as error:
            _log.warning("%s: the index of its keys is not saved: %s", folder, error)
        finally:
            temporary.unlink(missing_ok=True)

    @classmethod
    def read(cls, folder: str, about: Mapping[str, str]) -> "SavedKeys | None":
        """
        What was saved beside the table in `folder`; None where that is nothing, is damaged, or is about something else.
        """
        import pyarrow as pa

        try:
            whole = pa.memory_map(str(Path(folder, NAME))).read_buffer()
            if bytes(whole[:_CHECKSUM_SIZE]) != _checksum(memoryview(whole)[_CHECKSUM_SIZE:]):
                raise ValueError("its checksum is wrong")
            table = pa.ipc.open_stream(whole[_CHECKSUM_SIZE:]).read_all()
            said = {name.decode(): value.decode() for name, value in table.schema.metadata.items()}
            if said != {"format": _FORMAT, **about}:
                return None
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            _log.warning("%s: the saved index of its keys is damaged and is made again: %s", folder, error)
            return None
        file = table["file"].combine_chunks()
        high, low, *rest = (table[name].to_numpy() for name in _COLUMNS)
        return cls(file.dictionary.to_pylist(), Digests(high, low), RowLocations(file.indices.to_numpy(), *rest))

    def still_there(self, files: Mapping[str, IndexedFile]) -> "SavedKeys":
        """
        Of a version's `files`, by name, those of which every row that is to be found was saved, without other rows.
        """
        of_each = [files.get(name) for name in self.names]
        rows = np.array([0 if each is None else each.rows for each in of_each], np.int64)
        begins = np.concatenate(([0], np.cumsum(rows)))
        is_gone = np.zeros(begins[-1] + 1, bool)
        for begin, each in zip(begins.tolist(), of_each, strict=False):
            if each is not None:
                is_gone[begin + np.asarray(each.marked, np.int64)] = True
        file, row = self.locations.file, self.locations.row
        kept = row < rows[file]
        kept &= ~is_gone[np.where(kept, begins[file] + row, -1)]
        wanted = np.array([-1 if each is None else each.found for each in of_each], np.int64)
        is_whole = np.bincount(file[kept], minlength=len(self.names)) == wanted
        kept &= is_whole[file]
        return SavedKeys(
            [name for name, whole in zip(self.names, is_whole.tolist(), strict=True) if whole],
            self.digests.take(kept),
            RowLocations(
                (np.cumsum(is_whole) - 1)[file[kept]],
                row[kept],
                self.locations.partition[kept],
                self.locations.offset[kept],
            ),
        )

    def index(self, version: int) -> KeyIndex:
        """
        The index with just this, of a version of the table.
        """
        return KeyIndex.of(version, self.names, self.digests, self.locations)


def _checksum(content: memoryview) -> bytes:
    return blake2b(content, digest_size=_CHECKSUM_SIZE).digest()


def _remove_left(folder: str) -> None:
    for path in Path(folder).glob(f"{NAME}.*"):
        if time.time() - path.stat().st_mtime > _LEFT_AFTER_S:
            path.unlink()


def remove(folder: str) -> None:
    """
    Remove what is saved beside the table in `folder`: digests of keys that are erased may be among it.
    """
    for path in Path(folder).glob(f"{NAME}*"):
        with suppress(OSError):
            path.unlink()
