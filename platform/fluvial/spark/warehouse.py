"""
Where tables lie: `<warehouse>/<database>/<name>`, a local folder or a URI.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fluvial.errors import FluvialError
from fluvial.spark.connect import is_client, list_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DATABASES = ("history", "compacted", "state", "marts", "late", "quarantine")
SERVED = ".serve"
"""The folder beside the tables with what `fluvial serve` keeps of their data files, by the name of the table."""

_NAME = re.compile(r"[a-z_][a-z0-9_]*", re.IGNORECASE)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:", re.IGNORECASE)


class WarehouseError(FluvialError):
    """
    Tables cannot be kept where the settings say.
    """


def table_name_of(topic: str) -> str:
    """
    The SQL name that a topic's tables get: what SQL does not allow in a name becomes `_`.
    """
    name = re.sub(r"\W", "_", topic, flags=re.ASCII)
    return name if _NAME.fullmatch(name) else f"_{name}"


def is_table_name(name: str) -> bool:
    """
    Whether `name` needs no quoting in SQL.
    """
    return _NAME.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Warehouse:
    """
    The folder that holds the tables, named as an absolute path or a URI.
    """

    root: str

    @classmethod
    def at(cls, location: str) -> "Warehouse":
        """
        The warehouse at a setting's value; a relative path is taken from the current folder.
        """
        if _SCHEME.match(location):
            return cls(location.rstrip("/"))
        return cls(str(Path(location).expanduser().absolute()))

    @property
    def local(self) -> Path | None:
        """
        The folder on this machine, or None where the warehouse is elsewhere.
        """
        if self.root.startswith("file:"):
            return Path("/" + self.root.removeprefix("file:").lstrip("/"))
        return None if _SCHEME.match(self.root) else Path(self.root)

    def require_writable(self) -> None:
        """
        Make the folder where it is on this machine. Raises :class:`WarehouseError` when tables cannot be written there.
        """
        folder = self.local
        if folder is None:
            return
        repair = "name another folder with --warehouse, or as `warehouse` in fluvial.toml"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WarehouseError(f"the warehouse {folder} cannot be made: {error.strerror}: {repair}") from error
        if not os.access(folder, os.W_OK | os.X_OK):
            raise WarehouseError(f"the warehouse {folder} cannot be written: {repair}, or repair its permissions")

    def path(self, table: str) -> str:
        """
        The folder of `<database>.<name>`.
        """
        database, _, name = table.partition(".")
        return f"{self.root}/{database}/{name}"

    def tables(self, spark: "SparkSession | None" = None) -> list[str]:
        """
        The names of the Delta tables that lie here, sorted; a warehouse that is not local is listed through `spark`.
        """
        local = self.local
        if local is not None:
            logs = (log for database in DATABASES for log in (local / database).glob("*/_delta_log"))
            return sorted(f"{log.parent.parent.name}.{log.parent.name}" for log in logs if any(log.glob("*.json")))
        if spark is None:
            raise FluvialError(f"the tables in {self.root} can be listed by a Spark session only")
        return sorted(self._remote_tables(spark))

    def _remote_tables(self, spark: "SparkSession") -> list[str]:
        if is_client(spark):
            logs = list_files(spark, f"{self.root}/*/*/_delta_log/*.json")
            tables = {tuple(path.removeprefix(f"{self.root}/").split("/")[:2]) for path in logs}
            return [".".join(table) for table in tables if table[0] in DATABASES]
        jvm = spark._jvm
        path_of = jvm.org.apache.hadoop.fs.Path
        files = path_of(self.root).getFileSystem(spark._jsc.hadoopConfiguration())
        found = []
        for database in DATABASES:
            folder = path_of(f"{self.root}/{database}")
            if not files.exists(folder):
                continue
            names = [status.getPath().getName() for status in files.listStatus(folder) if status.isDirectory()]
            found += [
                f"{database}.{name}"
                for name in names
                if files.exists(path_of(f"{folder.toString()}/{name}/_delta_log"))
            ]
        return found
