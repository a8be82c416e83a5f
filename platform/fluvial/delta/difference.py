"""
What differs between two versions of a table, or two tables: rows by their key.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fluvial.delta.errors import TableError
from fluvial.delta.rows import identity, read_rows
from fluvial.delta.snapshot import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """
    A table at a version, and the folder where it lies.
    """

    name: str
    path: str
    snapshot: Snapshot

    @property
    def columns(self) -> tuple[str, ...]:
        """
        The names of its columns.
        """
        return tuple(each.name for each in self.snapshot.columns)

    def __str__(self) -> str:
        return f"{self.name}@{self.snapshot.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """
    The keys of rows that are in one of two tables only, or differ; `before` and `after` hold the rows.

    `changed` has, for each key, the names of the columns that differ, of those that both tables have.
    """

    before: "pa.Table"
    after: "pa.Table"
    removed: dict[Key, int]
    added: dict[Key, int]
    changed: dict[Key, tuple[int, int, tuple[str, ...]]]


def compare(before: Source, after: Source, key: Sequence[str], *, ignored: Collection[str] = ()) -> Difference:
    """
    Compare two tables row by row, but for the columns `ignored`. Files that two versions of a table share are not read.

    Raises :class:`TableError` where several rows of one of them have the same key.
    """
    known = {identity(each) for each in before.snapshot.added} if before.path == after.path else set()
    known &= {identity(each) for each in after.snapshot.added}
    rows = [
        read_rows(
            each.path,
            each.snapshot,
            [added for added in each.snapshot.added if identity(added) not in known],
            [name for name in each.columns if name not in ignored],
        )
        for each in (before, after)
    ]
    old, new = (_by_key(source, table, key) for source, table in zip((before, after), rows, strict=True))
    both = [name for name in rows[1].column_names if name in before.columns and name not in key]
    shared = [each for each in new if each in old]
    return Difference(
        before=rows[0],
        after=rows[1],
        removed={each: at for each, at in old.items() if each not in new},
        added={each: at for each, at in new.items() if each not in old},
        changed=_changed(rows, [(each, old[each], new[each]) for each in shared], both),
    )


def _by_key(source: Source, rows: "pa.Table", key: Sequence[str]) -> dict[Key, int]:
    found: dict[Key, int] = {}
    for at, each in enumerate(zip(*(rows[name].to_pylist() for name in key), strict=True)):
        if found.setdefault(each, at) != at:
            shown = ", ".join(f"{name} = {value}" for name, value in zip(key, each, strict=True))
            raise TableError(f"{source}: several rows have {shown}: name the columns that tell rows apart with --key")
    return found


def _changed(
    rows: "Sequence[pa.Table]", shared: Sequence[tuple[Key, int, int]], columns: Sequence[str]
) -> dict[Key, tuple[int, int, tuple[str, ...]]]:
    import numpy as np

    if not shared:
        return {}
    olds, news = np.array([old for _, old, _ in shared]), np.array([new for _, _, new in shared])
    differs: dict[int, tuple[str, ...]] = {}
    for name in columns:
        for at in _different(rows[0][name].take(olds), rows[1][name].take(news)):
            differs[at] = (*differs.get(at, ()), name)
    return {shared[at][0]: (*shared[at][1:], names) for at, names in sorted(differs.items())}


def _different(old: "pa.ChunkedArray", new: "pa.ChunkedArray") -> list[int]:
    """Where two columns differ; a null is as another, and so is what is no number."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        unequal = pc.not_equal(old, new)
        unequal = pc.if_else(pc.is_null(unequal), pc.xor(pc.is_null(old), pc.is_null(new)), unequal)
        if pa.types.is_floating(old.type) and pa.types.is_floating(new.type):
            unequal = pc.and_not(unequal, pc.fill_null(pc.and_(pc.is_nan(old), pc.is_nan(new)), False))
        return [int(at) for at in np.flatnonzero(unequal.to_numpy())]
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        # Arrow compares nothing nested.
        pairs = zip(old.to_pylist(), new.to_pylist(), strict=True)
        return [at for at, (one, other) in enumerate(pairs) if one != other]
