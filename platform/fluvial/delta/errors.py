"""
What can be wrong with a table, its files or the disk under them: one class for each kind of repair.
"""

import re
from typing import ClassVar

from fluvial.errors import FluvialError

_TABLE = re.compile(r"^(?P<root>.*/)?(?P<table>(?:history|compacted|state|marts|late|quarantine)/[^/]+)(?:/.*)?$")
_SCHEME = re.compile(r"^file:/{0,2}(?=/)")


class TableError(FluvialError):
    """
    A table that cannot be gone on with as it is.
    """

    retriable: ClassVar[bool] = False
    """Whether the same may succeed later though nobody has changed the table."""


class TableFileError(TableError):
    """
    A file of a table cannot be used. `table` is its name, None where the path does not tell; `file` is its path.
    """

    def __init__(self, file: str, problem: str, *, table: str | None = None) -> None:
        self.file = plain_path(file)
        self.table = table if table is not None else table_of(self.file)
        self.problem = problem
        super().__init__(f"{self._what()} {problem}: {self._repair()}")

    def _what(self) -> str:
        of = "" if self.table is None else f" of {self.table}"
        kind = "the deletion vector file" if self.file.endswith(".bin") else "the data file"
        return f"{kind} {self.file}{of}"

    def _repair(self) -> str:
        if self.table is None:
            return "restore it"
        if self.table.startswith("quarantine."):
            return (
                f"restore it, or move {folder_of(self.file)} away: {self.table} is then created again by the next "
                "runs put there"
            )
        source = "its inputs" if self.table.startswith("marts.") else "the log"
        return f"restore it, or `fluvial run --rebuild {self.table}` builds the table again from {source}"


class LostFileError(TableFileError):
    """
    A data file or a deletion vector that the table's log names is not there.
    """


class DamagedFileError(TableFileError):
    """
    A data file or a deletion vector is there and cannot be read: torn, truncated, or not what its checksum says.
    """


class BrokenLogError(TableFileError):
    """
    The table's own log is broken: a commit or a checkpoint is missing, empty, torn, or contradicts itself.
    """

    def _what(self) -> str:
        return self.file if self.table is None else f"{self.file} in the Delta log of {self.table}"


class UnsupportedTableError(TableError):
    """
    Another writer has enabled features of Delta on a table that the Delta here does not have.
    """

    def __init__(self, table: str, needs: str) -> None:
        self.table = table
        self.needs = needs
        super().__init__(
            f"{table} needs what the Delta here does not have ({needs}): upgrade delta-spark, or have the writer that "
            "enabled it drop it again (ALTER TABLE … DROP FEATURE)"
        )


class ForeignChangeError(TableError):
    """
    Another writer has changed the table: at the same time, or its columns so that the rows do not fit.
    """

    def __init__(self, table: str, what: str, repair: str) -> None:
        self.table = table
        super().__init__(f"{table} was changed by another writer ({what}): {repair}")


class OvertakenError(TableError):
    """
    Other writers were first in each of `attempts`. Nothing was committed.
    """

    def __init__(self, table: str, attempts: int, *, doing: str = "run") -> None:
        self.table = table
        super().__init__(f"{table}: other runs were first {attempts} times in a row; stop them and {doing} again")


class StorageError(TableError):
    """
    The system refuses to write or read where the table lies. Nothing of the batch was committed.
    """

    def __init__(self, table: str, where: str, problem: str, repair: str) -> None:
        self.table = table
        self.where = plain_path(where)
        super().__init__(f"{table} cannot be written or read: {self.where}: {problem}: {repair}")


class DiskFullError(StorageError):
    """
    No room is left. The batch is written once there is.
    """

    retriable = True


class SparkFailedError(TableError):
    """
    Spark failed for a reason that none of the others is; `cause` is what lies deepest in its errors.
    """

    retriable = True

    def __init__(self, table: str, cause: str, repair: str = "") -> None:
        self.table = table
        self.cause = cause
        super().__init__(f"Spark failed on {table}: {cause}{f': {repair}' if repair else ''}")


def plain_path(path: str) -> str:
    """
    A path without the `file:` that Hadoop puts before those of this machine.
    """
    return _SCHEME.sub("", path)


def table_of(file: str) -> str | None:
    """
    The table to which a file belongs, by its path; None for one that lies in no warehouse.
    """
    match = _TABLE.match(file)
    return None if match is None else match["table"].replace("/", ".")


def folder_of(file: str) -> str:
    """
    The folder of the table to which a file belongs; the file's own where no table is known.
    """
    match = _TABLE.match(file)
    return file.rpartition("/")[0] if match is None else f"{match['root'] or ''}{match['table']}"
