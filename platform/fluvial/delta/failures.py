"""
The one place that says in our words what Spark and Delta raise: an error of the JVM becomes one of
:mod:`fluvial.delta.errors`, which names the table, the file and the repair.

An error comes with all that caused it, in Python and in the JVM; the deepest names the file. Through Spark Connect
there is no JVM to ask, and the text of its stack stands for it.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fluvial.delta.errors import (
    BrokenLogError,
    DamagedFileError,
    DiskFullError,
    ForeignChangeError,
    LostFileError,
    SparkFailedError,
    StorageError,
    TableError,
    UnsupportedTableError,
    plain_path,
)
from fluvial.errors import FluvialError

# Delta's names for "another writer was there first"; which one comes depends on what both were doing.
LOST_RACE = (
    "Concurrent",
    "ProtocolChanged",
    "MetadataChanged",
    "DELTA_CONCURRENT",
    "DELTA_METADATA_CHANGED",
    "DELTA_PROTOCOL_CHANGED",
    "DELTA_PATH_EXISTS",
    "DELTA_TABLE_ALREADY_EXISTS",
)
_SHOWN_MAX = 300
_FILE = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?/[^\s:'\"(),;]+(?:\.parquet|\.bin|\.json|\.crc|/_last_checkpoint|\.tmp)")
_PATH = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?/[^\s:'\"(),;]+")
_FULL = ("No space left on device", "Disk quota exceeded", "QuotaExceededException")
_REFUSED = re.compile(r"Permission denied|Read-only file system|Operation not permitted|AccessControlException")
_UNSUPPORTED = re.compile(
    r"DELTA_UNSUPPORTED_FEATURES|DELTA_INVALID_PROTOCOL_VERSION|Mismatched min(Reader|Writer)Version"
)
_BROKEN_LOG = re.compile(
    r"DELTA_(VERSIONS_NOT_CONTIGUOUS|TRUNCATED_TRANSACTION_LOG|MISSING_PART_FILES|STATE_RECOVER_ERROR|"
    r"LOG_FILE_NOT_FOUND\w*|CHECKPOINT_NON_EXIST_TABLE|CORRUPTED_\w+)|failed integrity checks|"
    r"Checkpoint file to load version"
)
_LOST_FILE = re.compile(r"FILE_NOT_EXIST|FileNotFoundException|NoSuchFileException|DELTA_FILE_NOT_FOUND")
_DAMAGED_FILE = re.compile(
    r"FAILED_READ_FILE|ChecksumException|is not a Parquet file|ParquetDecodingException|CANNOT_READ_FILE|"
    r"DELTA_DELETION_VECTOR_\w+|ParquetCrypto|MALFORMED_RECORD"
)
_OTHER_COLUMNS = re.compile(r"DELTA_(FAILED_TO_MERGE_FIELDS|METADATA_MISMATCH|SCHEMA_CHANGED\w*|MERGE_INCOMPATIBLE\w*)")
_STOPPED = re.compile(r"SparkContext (was|has been) shut ?down|stopped SparkContext|Py4JNetworkError|ConnectionRefused")
_KAFKA = re.compile(r"org\.apache\.kafka\.[\w.]*?(\w+Exception)")
_PYTHON = "An exception was thrown from the Python worker"


@dataclass(frozen=True, slots=True)
class _Cause:
    """One of the errors that led to another: the name of its class, its condition in Spark's words, its message."""

    name: str
    text: str


@contextmanager
def explain_failures(table: str, path: str = "") -> Iterator[None]:
    """
    Raise what Spark, Delta or the system raises in the block as one of our errors, of `table`, which lies at `path`.

    An error of ours passes as it is, and so does one that is none of theirs: it is a mistake in our code or the user's.
    """
    try:
        yield
    except FluvialError:
        raise
    except Exception as error:
        explanation = explained(error, table, path)
        if explanation is None:
            raise
        raise explanation from error


def explained(error: BaseException, table: str, path: str = "") -> FluvialError | None:
    """
    What an error says of a table in our words; None where neither Spark nor the system has raised it.
    """
    if isinstance(error, FluvialError):
        return error
    if not _is_foreign(error):
        return None
    causes = [*_causes(error)]
    everything = "\n".join(f"{cause.name}: {cause.text}" for cause in causes)
    if isinstance(error, OSError):
        # Of the system's own only what it says of disks, and that nobody listens where the JVM did.
        is_jvm = isinstance(error, ConnectionError)
        return _of_storage(everything, table, path) or (_of_spark(causes, everything, table) if is_jvm else None)
    return (
        _of_storage(everything, table, path)
        or _of_protocol(causes, table)
        or _of_files(causes, everything, table, path)
        or _of_writers(causes, everything, table)
        or _of_spark(causes, everything, table)
    )


def texts_of(error: BaseException) -> str:
    """
    All that an error of Spark says, down to the cause in the JVM.
    """
    return "\n".join(cause.text for cause in _causes(error))


def _is_foreign(error: BaseException) -> bool:
    """Whether Spark or the system raised it."""
    if isinstance(error, OSError):
        return error.errno is not None
    modules = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return not modules.isdisjoint({"pyspark", "py4j", "pyarrow"})


def _causes(error: BaseException) -> Iterator[_Cause]:
    """An error and what caused it, the deepest last."""
    condition = getattr(error, "getCondition", None)
    name = f"{type(error).__name__} {(condition() or '') if condition is not None else ''}".strip()
    yield _Cause(name, "\n".join(filter(None, [str(error), getattr(error, "_stacktrace", None)])))
    java = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    while java is not None:
        yield _Cause(str(java.getClass().getName()), str(java.getMessage() or ""))
        java = java.getCause()
    if error.__cause__ is not None and java is None:
        yield from _causes(error.__cause__)


def _of_storage(everything: str, table: str, path: str) -> TableError | None:
    # Without its own words, which quote the stack: only what says where.
    if any(sign in everything for sign in _FULL):
        where = _first(_FILE, everything) or path or table
        return DiskFullError(
            table,
            where,
            "no space left on device",
            "nothing of the batch was committed; free some space, there or where Spark keeps its own files "
            "(spark.local.dir)",
        )
    refused = _REFUSED.search(everything)
    if refused is None:
        return None
    line = next(line for line in everything.splitlines() if refused[0] in line)
    where = _first(_PATH, line) or path or table
    return StorageError(
        table, where, refused[0], "nothing of the batch was committed; fix its permissions, or run as its owner"
    )


def _of_protocol(causes: list[_Cause], table: str) -> TableError | None:
    for cause in reversed(causes):
        if _UNSUPPORTED.search(cause.text) or _UNSUPPORTED.search(cause.name) or "InvalidProtocol" in cause.name:
            return UnsupportedTableError(table, _sentence(cause.text))
    return None


def _of_files(causes: list[_Cause], everything: str, table: str, path: str) -> TableError | None:
    broken = next((cause for cause in reversed(causes) if _BROKEN_LOG.search(cause.text)), None)
    if broken is not None:
        file = _first(_FILE, broken.text) or f"{path}/_delta_log"
        return BrokenLogError(file, f"is not whole ({_sentence(broken.text)})")
    lost = _LOST_FILE.search(everything)
    if lost is None and _DAMAGED_FILE.search(everything) is None:
        return None
    # The deepest that names a file: of a deletion vector that is lost Spark says that its data file cannot be read.
    named = next(filter(None, (_first(_FILE, _message(cause)) for cause in reversed(causes))), None)
    if named is None:
        return None
    file = plain_path(named)
    why = _sentence(causes[-1].text)
    if "/_delta_log/" in file:
        return BrokenLogError(file, "is missing" if lost is not None else f"cannot be read ({why})")
    if lost is not None:
        return LostFileError(file, "is missing")
    return DamagedFileError(file, f"cannot be read ({why})")


def _of_writers(causes: list[_Cause], everything: str, table: str) -> TableError | None:
    again = f"`fluvial run {table}`" if "." in table else "it"
    for cause in causes:
        words = [cause.name.rpartition(".")[2], *cause.name.split()[1:]]
        race = next((word for word in words if word.startswith(LOST_RACE)), None)
        if race is not None:
            return ForeignChangeError(table, race, f"nothing was written; run {again} again")
    other = _OTHER_COLUMNS.search(everything)
    if other is not None:
        said = next(cause.text for cause in reversed(causes) if other[0] in f"{cause.name} {cause.text}")
        return ForeignChangeError(
            table,
            _sentence(said),
            "its columns no longer take the rows that belong in it: change them back, or `fluvial run --rebuild "
            f"{table}`",
        )
    return None


def _of_spark(causes: list[_Cause], everything: str, table: str) -> FluvialError:
    if "OutOfMemoryError" in everything:
        return SparkFailedError(table, "its JVM ran out of memory", "give it more with --conf spark.driver.memory=4g")
    if _STOPPED.search(everything):
        return SparkFailedError(table, "Spark has ended or does not answer", "its log says why; run it again")
    deepest = causes[-1]
    kafka = _KAFKA.search(everything)
    if kafka is not None:
        from fluvial.spark.kafka import TopicError

        return TopicError(f"{table}: the Kafka cluster failed the request: {kafka[1]}: "
                          f"{_sentence(deepest.text)}")  # fmt: skip
    name = deepest.name.split()[0].rpartition(".")[2]
    worker = next((cause.text for cause in causes if _PYTHON in cause.text), None)
    if worker is not None:
        # Behind the stack of the worker stands what was raised there.
        return SparkFailedError(table, _sentence(worker.split("JVM stacktrace")[0].strip().splitlines()[-1]))
    sentence = _sentence(_message(deepest))
    return SparkFailedError(table, sentence if sentence.startswith("[") else f"{name}: {sentence}")


def _message(cause: _Cause) -> str:
    """A message without the stack that Py4J writes behind it."""
    lines = []
    for line in cause.text.splitlines():
        if line.lstrip().startswith("at "):
            break
        lines.append(line)
    return "\n".join(lines) or cause.text


def _sentence(text: str) -> str:
    """The first line of a message, without Spark's marks around it."""
    lines = [line.strip() for line in text.strip().splitlines()]
    # Py4J's own first line says which call failed, of an object that nobody knows.
    if lines and lines[0].startswith("An error occurred while calling") and len(lines) > 1:
        lines = lines[1:]
    line = re.sub(r"\s*SQLSTATE: \w+\.?$", "", lines[0].lstrip(": ")) if lines else "without a word"
    return line if len(line) <= _SHOWN_MAX else f"{line[:_SHOWN_MAX]}…"


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return None if match is None else match[0]
