"""
Deletion vectors, which say what rows of a data file are gone: read and written by Delta's own store of them.
"""

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fluvial.delta.errors import TableError, plain_path
from fluvial.delta.jvm import scala_object
from fluvial.delta.log import is_here
from fluvial.delta.recent import Recent

if TYPE_CHECKING:
    from pyroaring import BitMap64
    from pyspark.sql import SparkSession

# "Portable", a bitmap array as every Delta reader knows it: this number, then 64-bit roaring bitmaps.
PORTABLE_MAGIC = struct.pack("<i", 1681511377)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vectors:
    """The deletion vectors of a table."""

    store: Any
    root: Any
    portable: Any
    recent: "Recent[BitMap64]"
    here: str | None

    @classmethod
    def of(cls, session: "SparkSession", log: Any, recent: "Recent[BitMap64]") -> "Vectors":
        path = plain_path(str(log.dataPath()))
        delta = "org.apache.spark.sql.delta"
        stores = scala_object(session, f"{delta}.storage.dv.DeletionVectorStore")
        return cls(
            store=stores.createInstance(log.newDeltaHadoopConf()),
            root=log.dataPath(),
            portable=scala_object(session, f"{delta}.deletionvectors.RoaringBitmapArrayFormat").Portable(),
            recent=recent,
            here=path if is_here(path) else None,
        )

    def rows(self, vector: Any) -> "BitMap64":
        """The rows that are marked; not to be changed."""
        from pyroaring import BitMap64

        identity = vector.uniqueId()
        found = self.recent.get(identity)
        if found is None:
            found = self._read_here(vector)
            if found is None:
                read = bytes(self.store.read(vector, self.root).serializeAsByteArray(self.portable))
                found = BitMap64.deserialize(read[len(PORTABLE_MAGIC) :])
            self.recent.put(identity, found, vector.sizeInBytes())
        return found

    def _read_here(self, vector: Any) -> "BitMap64 | None":
        """The rows without the JVM, which takes tens of milliseconds for each vector; None where only it can."""
        from fluvial.delta.rows import marked_rows

        if self.here is None:
            return None
        offset = vector.offset()
        described = {
            "storageType": vector.storageType(),
            "pathOrInlineDv": vector.pathOrInlineDv(),
            "offset": offset.get() if offset.isDefined() else None,
            "sizeInBytes": vector.sizeInBytes(),
        }
        try:
            return marked_rows(self.here, described)
        except (TableError, OSError):
            return None

    def writer(self, identity: Any) -> Any:
        """What writes a file of them; `identity`, a UUID of Java's, makes its name."""
        folder = self.store.pathWithFileSystem(self.root)
        return self.store.createWriter(self.store.generateFileNameInTable(folder, identity, ""))
