"""
Tables in a Hive metastore, by the client in Spark's own jars: Spark and Trino find them there by name.

An entry is what those make of a Delta table themselves: an external table whose property says the provider. Its columns
are for people; engines take them from the table's own log. Hive itself does not read such a table.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

from fluvial.catalog.entry import Entry, EntryColumn, sql_type
from fluvial.catalog.errors import CatalogError
from fluvial.catalog.outcome import Outcome
from fluvial.catalog.rest import words_of
from fluvial.catalog.settings import CatalogSettings

SECONDS_MAX = 30.0
"""Of one table in all; the client's own limit is of one answer."""
TYPE_CHARACTERS_MAX = 4000
"""Those of a column's type that a metastore's database holds."""
PROVIDER = "spark.sql.sources.provider"

_API = "org.apache.hadoop.hive.metastore.api"
_SERDE = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"
_INPUT = "org.apache.hadoop.mapred.SequenceFileInputFormat"
_OUTPUT = "org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat"
# Types that Hive has no word for, by one that shows them.
_HIVE = {"timestamp_ntz": "timestamp", "variant": "binary", "void": "string"}


class HiveCatalog:
    """The metastore that `settings` name. It is asked through the JVM of this process, and by one thread at a time."""

    needs_spark = True

    def __init__(self, settings: CatalogSettings) -> None:
        assert settings.hive is not None, "the settings name a Hive metastore"
        self._uris = settings.hive
        self._title = str(settings)
        self._prefix = "" if settings.name is None else f"{settings.name}_"

    def register(self, entry: Entry) -> Outcome:
        """Have the metastore know the table as it is. Raises CatalogError."""
        return _within(SECONDS_MAX, lambda: self._register(entry), self._title)

    def _register(self, entry: Entry) -> Outcome:
        database = f"{self._prefix}{entry.database}".lower()
        with _explained(self._title), self._client() as (jvm, client):
            wanted = self._table(jvm, database, entry)
            found = _or_none(lambda: client.getTable(database, entry.name.lower()))
            if found is None:
                if _or_none(lambda: client.getDatabase(database)) is None:
                    client.createDatabase(_new(jvm, "Database", database, "Tables of fluvial", None, None))
                client.createTable(wanted)
                return Outcome.MADE
            if not _is_delta(found) or _place(found) != _place(wanted):
                place = words_of(f"{found.getTableType()} at {found.getSd().getLocation()}")
                raise CatalogError(
                    f"{self._title}: {database}.{entry.name} is another table there ({place}); drop it, or let the "
                    "databases begin otherwise by `name` in [catalog]"
                )
            if _columns(found) == _columns(wanted):
                return Outcome.SAME
            found.getSd().setCols(wanted.getSd().getCols())
            client.alter_table(database, entry.name.lower(), found)
            return Outcome.CHANGED

    @contextmanager
    def _client(self) -> "Iterator[tuple[Any, Any]]":
        from pyspark import SparkContext

        jvm = SparkContext._jvm
        if jvm is None:
            raise CatalogError(
                f"{self._title} is told by a Spark of this process, and there is none with Spark Connect; name a "
                "master such as local[*]",
                is_away=True,
            )
        conf = jvm.org.apache.hadoop.hive.conf.HiveConf()
        for name, value in (
            ("hive.metastore.uris", self._uris),
            ("hive.metastore.client.socket.timeout", "10s"),
            ("hive.metastore.connect.retries", "1"),
            ("hive.metastore.failure.retries", "0"),
        ):
            conf.set(name, value)
        client = jvm.org.apache.hadoop.hive.metastore.HiveMetaStoreClient(conf)
        try:
            yield jvm, client
        finally:
            client.close()

    def _table(self, jvm: Any, database: str, entry: Entry) -> Any:
        # Hadoop's paths are no URIs: a blank stands there as it is.
        location = unquote(entry.location) if entry.location.startswith("file:") else entry.location
        serde = _new(jvm, "SerDeInfo")
        serde.setSerializationLib(_SERDE)
        serde.setParameters({"path": location, "serialization.format": "1"})
        storage = _new(jvm, "StorageDescriptor")
        storage.setCols([_new(jvm, "FieldSchema", each.name, _type(each), each.comment) for each in entry.columns])
        storage.setLocation(location)
        storage.setInputFormat(_INPUT)
        storage.setOutputFormat(_OUTPUT)
        storage.setSerdeInfo(serde)
        table = _new(jvm, "Table")
        table.setDbName(database)
        table.setTableName(entry.name.lower())
        table.setTableType("EXTERNAL_TABLE")
        table.setParameters({"EXTERNAL": "TRUE", PROVIDER: "delta"})
        table.setPartitionKeys([])
        table.setSd(storage)
        return table


def _new(jvm: Any, name: str, *values: Any) -> Any:
    return getattr(getattr(jvm, _API), name)(*values)


def _type(column: EntryColumn) -> str:
    text = sql_type(column.kind, _HIVE)
    return text if len(text) <= TYPE_CHARACTERS_MAX else "string"


def _is_delta(table: Any) -> bool:
    provider = table.getParameters().get(PROVIDER) or ""
    return bool(table.getTableType() == "EXTERNAL_TABLE" and provider.lower() == "delta")


def _place(table: Any) -> str:
    place = str(table.getSd().getLocation()).rstrip("/")
    return "file:/" + place[5:].lstrip("/") if place.startswith("file:") else place


def _columns(table: Any) -> list[tuple[str, str, str]]:
    # A metastore keeps names in small letters.
    return [(each.getName().lower(), each.getType(), each.getComment() or "") for each in table.getSd().getCols()]


def _or_none(ask: Callable[[], Any]) -> Any:
    """What a metastore has, None where it says that it has no such thing."""
    from py4j.protocol import Py4JJavaError

    try:
        return ask()
    except Py4JJavaError as error:
        if error.java_exception.getClass().getSimpleName() == "NoSuchObjectException":
            return None
        raise


@contextmanager
def _explained(title: str) -> Iterator[None]:
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        thrown = error.java_exception
        said = words_of(f"{thrown.getClass().getSimpleName()}: {(thrown.getMessage() or '').partition(chr(10))[0]}")
        raise CatalogError(f"{title} does not take tables ({said})", is_away=True) from None
    except Py4JError as error:
        raise CatalogError(f"{title} is not asked: {words_of(error)}", is_away=True) from error


def _within(seconds: float, work: Callable[[], Outcome], title: str) -> Outcome:
    """Do what may hang on a thread that nobody waits for at the end."""
    outcomes: list[Outcome] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            outcomes.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="hive-metastore", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not outcomes:
        raise CatalogError(f"{title} does not answer (nothing within {seconds:g} s)", is_away=True)
    return outcomes[0]
