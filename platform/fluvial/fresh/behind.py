"""
What is behind a version of a table: events of its topic, to be folded into it, as a part of a query.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fluvial.fresh import overlay
from fluvial.fresh.errors import FreshError
from fluvial.fresh.reducing import reduced_rows
from fluvial.query.references import quoted
from fluvial.query.routing import why_spark, why_spark_types
from fluvial.query.rows import columns_of
from fluvial.query.versions import Sources, Version
from fluvial.spark.avro import Contract
from fluvial.tables.declare.declarations import Compacted, History, State
from fluvial.tables.plan.checks import key_column

if TYPE_CHECKING:
    import pyarrow as pa

Made = History | Compacted | State


@dataclass(kw_only=True)
class Tail:
    """
    The events behind a table, as :class:`~fluvial.query.versions.Newer` says.
    """

    declaration: Made
    contract: Contract
    number: int
    events: "pa.Table"

    def why_spark(self, columns: Sequence[tuple[str, str]]) -> str | None:
        """
        Why the declaration's own expressions are Spark's.
        """
        if not isinstance(self.declaration, State):
            return None
        folds = self.declaration.fields.values()
        texts = [text for fold in folds for text in (fold.expr, fold.where) if text]
        text = f"SELECT {', '.join([*texts, self.declaration.order or '1'])}"
        return why_spark(text) or why_spark_types(text, [*columns, *columns_of(self.events.schema)])

    def query(self, version: Version, sources: Sources) -> str:
        """
        The rows of the table with these events in it.
        """
        declaration, folder = self.declaration, sources.folder
        table, types = sources.of(version.table, version.version), self._types(version, sources)
        if isinstance(declaration, History):
            return overlay.history(table, self._file(folder, "tail", self.events), types)
        if isinstance(declaration, Compacted):
            tail = self._file(folder, "tail", self.events)
            return overlay.compacted(self._key, self.contract.field_names, table, tail, types)
        keys = self._file(folder, "keys", self._keys)
        if declaration.reducer is not None:
            old = sources.rows(overlay.touched(declaration, table, keys))
            made = self._file(folder, "made", reduced_rows(declaration, old, self.events))
            return overlay.reduced(declaration, table, made, keys, types)
        return overlay.state(declaration, table, self._file(folder, "tail", self.events), keys, types)

    def changed(self, version: Version, sources: Sources) -> str:
        """
        The rows of the table that these events make, and those that they take away.
        """
        table, types = sources.of(version.table, version.version), self._types(version, sources)
        if isinstance(self.declaration, History):
            return overlay.listed(self._file(sources.folder, "tail", self.events), types)
        keys = self._file(sources.folder, "keys", self._keys)
        both = (overlay.of_keys(self._key, each, keys, types) for each in (table, sources.current(version)))
        return " UNION ALL ".join(both)

    def _types(self, version: Version, sources: Sources) -> dict[str, str]:
        types = dict(sources.columns(version.table, version.version))
        missing = [name for name in self._made_of() if name not in types]
        if missing:
            table = self.declaration.table
            raise FreshError(f"{table} has no column {missing[0]} yet: `fluvial run {table}` adds it")
        return types

    @property
    def _key(self) -> str:
        assert not isinstance(self.declaration, History), "a history has no key"
        declared = self.declaration
        return declared.key if isinstance(declared, State) else key_column(declared, self.contract)

    @cached_property
    def _keys(self) -> "pa.Table":
        import pyarrow as pa

        return pa.table({"_entity": self.events["_entity"].unique()})

    def _made_of(self) -> Sequence[str]:
        if isinstance(self.declaration, State):
            return (self.declaration.key, *self.declaration.columns)
        return self.contract.field_names

    def _file(self, folder: Path, what: str, rows: "pa.Table") -> str:
        import pyarrow.parquet as pq

        path = folder / f"{what}-{self.declaration.table}-{id(self):x}.parquet"
        pq.write_table(rows, path, compression="none")
        return f"parquet.{quoted(str(path))}"
