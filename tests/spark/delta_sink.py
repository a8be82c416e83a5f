"""fluvial's own sink as `fluvial certify` tries it: rows and their offsets in one guarded commit of a Delta table."""

from collections.abc import Iterable
from pathlib import Path

from fluvial.config import Settings
from fluvial.delta.commit import append, commit_once
from fluvial.delta.log import TableLog
from fluvial.delta.stamp import Stamp, read_position
from fluvial.errors import FluvialError
from fluvial.spark.session import build_session
from fluvial.testing.sink_driver import Batch

TABLE, TOPIC = "history.certified", "certified"
COLUMNS = "id BIGINT, key STRING, value STRING"


class DeltaTable:
    """A history of the offsets of one partition."""

    def __init__(self, folder: Path) -> None:
        self._spark = build_session(Settings(warehouse=str(folder)), "certified")
        self._path = str(folder / "history" / "certified")
        self._log = TableLog(self._spark, self._path)

    def write(self, batch: Batch) -> None:
        position = read_position(self._log, TABLE)
        start = position.ends.get(0, 0)
        if batch.start > start:
            raise FluvialError(f"the rows from {start} to {batch.start - 1} are missing")
        rows = [(row.id, row.key, row.value) for row in batch.rows if row.offset >= start]
        if not rows:
            return
        number = 0 if position.stamp is None else position.stamp.batch + 1
        stamp = Stamp(topic=TOPIC, topic_id=None, batch=number, offsets={0: (start, batch.end)})
        frame = self._spark.createDataFrame(rows, COLUMNS)
        written = commit_once(self._log, stamp, above=position.version, write=lambda: append(frame, self._path, stamp))
        if written is None:
            raise FluvialError("another writer was first")

    def ids(self) -> Iterable[int]:
        if self._log.newest_version() is None:
            return []
        return [row.id for row in self._spark.read.format("delta").load(self._path).select("id").collect()]

    def position(self) -> int:
        return read_position(self._log, TABLE).ends.get(0, 0)
