"""
The tables of one statement as an engine reads them, each with the records that its version has behind it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluvial.query.made_frames import Frames, leave_to_spark
from fluvial.query.references import quoted
from fluvial.query.rows import Columns
from fluvial.query.sail import Sail
from fluvial.query.versions import MakesFrame, Sources, Version

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(kw_only=True)
class SailSources:
    """
    For a statement that Sail answers: `place` and `columns_at` are what stands behind FROM for a version of a table and
    its columns. Files go to `folder`, which Sail may read and write; functions are called by `frames`.

    Whatever Sail refuses is :class:`~fluvial.query.sail.SailError`.
    """

    sail: Sail
    frames: Frames
    place: Callable[[str, int], str]
    columns_at: Callable[[str, int], Columns]
    folder: Path
    _made: dict[tuple[str, int], str] = field(default_factory=dict)

    def of(self, table: str, version: int) -> str:
        return self.place(table, version)

    def columns(self, table: str, version: int) -> Columns:
        return self.columns_at(table, version)

    def current(self, version: Version) -> str:
        if version.newer is not None:
            leave_to_spark(version.newer.why_spark(self.columns_at(version.table, version.version)))
        return _current(self, version, self._made)

    def rows(self, statement: str) -> "pa.Table":
        with self.sail.ask(statement) as reader:
            return reader.read_all()

    def made(self, name: str, make: MakesFrame, statements: Sequence[str]) -> str:
        path = self.folder / f"made-{name}-{len(list(self.folder.iterdir()))}.parquet"
        self.frames.write(self.sail, name, make, statements, path)
        return f"parquet.{quoted(str(path))}"


@dataclass(kw_only=True)
class SparkSources:
    """
    For a statement that Spark answers, by `ask`, which gives a DataFrame; it reads files in `folder`.
    """

    ask: Callable[[str], Any]
    folder: Path
    _made: dict[tuple[str, int], str] = field(default_factory=dict)

    def of(self, table: str, version: int) -> str:
        return f"{table} VERSION AS OF {version}"

    def columns(self, table: str, version: int) -> Columns:
        fields = self.ask(f"SELECT * FROM {self.of(table, version)}").schema.fields
        return [(each.name, each.dataType.simpleString()) for each in fields]

    def current(self, version: Version) -> str:
        return _current(self, version, self._made)

    def rows(self, statement: str) -> "pa.Table":
        answer: pa.Table = self.ask(statement).toArrow()
        return answer

    def made(self, name: str, make: MakesFrame, statements: Sequence[str]) -> str:
        view = quoted(f"_fluvial_fresh_{name}_{len(self._made)}")
        make([self.ask(each) for each in statements]).createOrReplaceTempView(view.strip("`"))
        return view


def _current(sources: Sources, version: Version, made: dict[tuple[str, int], str]) -> str:
    """What stands behind FROM for a table with what is behind it, which is made once for a statement."""
    if version.newer is None:
        return sources.of(version.table, version.version)
    of_now = (version.table, version.version)
    if of_now not in made:
        made[of_now] = f"({version.newer.query(version, sources)})"
    return made[of_now]
