"""
The one way a Spark session is made here, and the names it knows.

Settings come from `infra/spark/spark-defaults.conf`, then from the user's; tables get their SQL names from the
warehouse folder, so that any number of processes may work on one warehouse.
"""

import logging
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import RLock, Thread
from typing import TYPE_CHECKING, Any, NoReturn

from fluvial.delta.errors import SparkFailedError
from fluvial.delta.failures import explain_failures, explained
from fluvial.delta.log import TableLog
from fluvial.errors import FluvialError
from fluvial.extras import needed
from fluvial.spark import kept
from fluvial.spark.class_archive import ClassArchive
from fluvial.spark.connect import connect, is_client, is_local, is_remote
from fluvial.spark.jars import Say, prepare_jars, require_jars
from fluvial.spark.java import require_java
from fluvial.spark.jvm import has_jvm, start_jvm
from fluvial.spark.packaged import packaged
from fluvial.spark.s3 import CONF as S3_CONF
from fluvial.spark.s3 import is_on_s3, require_s3_jars
from fluvial.spark.warehouse import DATABASES, Warehouse, is_table_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fluvial.config import Settings

_log = logging.getLogger(__name__)

# Whose tables the names of a session stand for.
_WAREHOUSE_NAMED = "spark.fluvial.warehouse"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# Lists that both sides have a part of: ours comes first, the user's adds to it. Each with what separates its entries.
_ADDED_TO = {
    _JAVA_OPTIONS: " ",
    "spark.driver.extraClassPath": os.pathsep,
    "spark.jars": ",",
    "spark.sql.extensions": ",",
}
# With what is quoted in it, as Spark's launcher takes it.
_JAVA_OPTION = re.compile(r"""(?:[^\s"']|"(?:\\.|[^"\\])*"|'[^']*'|["'])+""")
# One compiler, and no threads for garbage that a short run does not make. Where only the first one compiles, the JVM
# keeps less room for what it makes than Spark fills; and each time that classes have filled the room it has begun with,
# it would go through the whole heap, five times in a run.
_SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m -XX:MetaspaceSize=256m"
# PySpark logs each refused query with its whole JVM stack on stderr, beside raising it.
_NOISY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
# Delta's own statements take `history` for their keyword, so that as a database's name they want it quoted.
_DELTA_COMMAND = re.compile(r"\s*(OPTIMIZE|VACUUM|RESTORE|REORG|DESC(RIBE)?\s+(HISTORY|DETAIL))\b", re.IGNORECASE)
_HISTORY_DATABASE = re.compile(r"(?<![`\w.'\"])history\.", re.IGNORECASE)
# Who comes second finds the jars and the JVM of the first.
_starting = RLock()
# Whether the session to come is begun ahead, and the kept one that was borrowed for it.
_ahead: list[kept.Lease | None] = []
_CONF_LINE = re.compile(r"(?P<key>[^\s=]+)[\s=]+(?P<value>.+)")


class SparkError(FluvialError):
    """
    Spark could not start, or refused a statement.
    """


class UnknownTableError(SparkError):
    """
    A query names a table that the warehouse does not hold.
    """

    def __init__(self, name: str, known: list[str]) -> None:
        self.name = name
        self.known = known
        there = f"there are: {', '.join(known)}" if known else "the warehouse holds no table yet: run a pipeline first"
        super().__init__(f"no table {name}; {there}")


def build_session(
    settings: "Settings",
    app_name: str = "fluvial",
    *,
    say: Say | None = None,
    borrow: bool = False,
    is_short: bool = False,
) -> "SparkSession":
    """
    A session with Delta, the Kafka source and Avro, and every table of the warehouse known by name.

    A master `sc://host:port` is a Spark Connect server, which has those already; no Java is needed here then. Where
    this process already has a session, that one is returned with the names brought up to date. With `borrow` one that
    `fluvial serve` keeps is used instead of a new one, if no other process has it; it is for a command that ends soon.
    A JVM that is started for what `is_short` compiles quickly and does not optimise, unless there are Java options of
    the user's. `say` hears what takes long (the first fetch of the jars). Raises :class:`SparkError` or a sibling with
    one clear line.
    """
    if is_remote(settings.spark_master):
        spark = connect(settings.spark_master, session_conf(settings, []))
        register_tables(spark, settings)
        return spark
    with needed():
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    from py4j.protocol import Py4JError

    builder = SparkSession.builder.appName(app_name)
    try:
        spark = _borrowed(settings, say) if borrow or _ahead else None
        if spark is None:
            for key, value in _with_jvm(settings, say, is_short=is_short).items():
                builder = builder.config(key, value)
            spark = builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        explanation = explained(error, "the session")
        why = explanation.cause if isinstance(explanation, SparkFailedError) else _first_line(error)
        repair = "" if is_local(settings.spark_master) else ": start the cluster, or repair its address (spark_master)"
        raise SparkError(f"Spark did not start on {settings.spark_master}: {why}{repair}") from error
    for name in _NOISY_LOGGERS:
        # By a level: `disabled` is taken back by whoever configures logging later, as uvicorn does. And as loggers of
        # logging's own: PySpark's class puts its JSON format on each handler that is added, also on pytest's.
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    register_tables(spark, settings)
    return spark


def start_ahead(settings: "Settings", *, is_short: Callable[[], bool] = lambda: False) -> None:
    """
    Begin to borrow the session to come, or to start its JVM, beside what else its process prepares.

    :func:`build_session`, which has `is_short` too, waits for it; where it does not start, that tries again and says
    why. Whether it is short is asked only where none is borrowed.
    """

    def start() -> None:
        with suppress(Exception), _starting:
            if not has_jvm() and (lease := _borrow(settings, None)) is not None:
                _ahead[:] = [lease]
            else:
                _with_jvm(settings, None, is_short=is_short())

    if not is_remote(settings.spark_master):
        _ahead[:] = [None]
        Thread(target=start, name="jvm-start", daemon=True).start()


def _borrowed(settings: "Settings", say: Say | None) -> "SparkSession | None":
    """A session in the JVM that `fluvial serve` keeps: this process's, or a new one where it has no JVM yet."""
    from fluvial.spark.lent import LentSession, attach

    if has_jvm():
        session = LentSession._instantiatedSession
        return session if isinstance(session, LentSession) else None
    # Not in the thread that has asked for it: PySpark takes Ctrl-C for its jobs where the session is made.
    with _starting:
        lease = (_ahead.pop() if _ahead else None) or _borrow(settings, say)
    return None if lease is None else attach(lease)


def _borrow(settings: "Settings", say: Say | None) -> kept.Lease | None:
    return kept.borrow(settings, lambda: driver_conf(settings, say)) if is_local(settings.spark_master) else None


def _with_jvm(settings: "Settings", say: Say | None, *, is_short: bool = False) -> dict[str, str]:
    """Start the JVM where there is none yet, and return what the session is configured with."""
    with _starting:
        conf = driver_conf(settings, say)
        if is_short and is_local(settings.spark_master) and _JAVA_OPTIONS not in settings.spark_conf:
            conf[_JAVA_OPTIONS] += f" {_SHORT}"
        start_jvm(conf)
    return conf


def driver_conf(settings: "Settings", say: Say | None = None) -> dict[str, str]:
    """
    Every setting of a session whose driver is of this machine; what it is started by is in the environment then.
    """
    java = require_java()
    own = is_local(settings.spark_master)
    # The archive is read by a driver on a class path that is known here: on a cluster the jars are copied first. A JVM
    # that runs takes none, and would be the one of the process that makes it, which inherits how to reach it.
    jars = prepare_jars(say) if own and not has_jvm() else require_jars(say)
    if is_on_s3(settings.warehouse):
        jars = (*jars, *require_s3_jars(jars, say))
    # Python workers must be this Python, not whatever `python3` is on PATH; on a cluster it may lie elsewhere.
    os.environ.setdefault("PYSPARK_PYTHON", settings.spark_conf.get("spark.pyspark.python", sys.executable))
    if own:
        # Without it Spark looks up the machine's own name, and does not start where that resolves to no address.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    archive = ClassArchive.of(java, jars) if own else None
    return session_conf(settings, [str(jar) for jar in jars], archive)


def has_session() -> bool:
    """
    Whether this process has a session, of either kind; asking imports nothing.
    """
    classic, remote = (sys.modules.get(name) for name in ("pyspark.core.context", "pyspark.sql.connect.session"))
    return (classic is not None and classic.SparkContext._active_spark_context is not None) or (
        remote is not None and remote.SparkSession._get_default_session() is not None
    )


def session_conf(settings: "Settings", jars: Sequence[str], archive: ClassArchive | None = None) -> dict[str, str]:
    """
    Every setting of the session that :func:`build_session` makes; `archive` is one of the driver's classes.
    """
    conf = read_conf(packaged("spark-defaults.conf").read_text(encoding="utf-8"))
    local = is_local(settings.spark_master)
    conf["spark.master"] = settings.spark_master
    conf["spark.sql.warehouse.dir"] = Warehouse.at(settings.warehouse).root
    if is_on_s3(settings.warehouse) and not is_remote(settings.spark_master):
        conf |= S3_CONF
    if local:
        # In one JVM the jars go on its class path: nothing is copied, and one loader sees Spark and Delta. Nobody
        # else connects to this driver, and a laptop's host name often resolves to an address it has left behind.
        conf["spark.driver.extraClassPath"] = os.pathsep.join(jars)
        conf["spark.driver.host"] = conf["spark.driver.bindAddress"] = "127.0.0.1"
    else:
        conf["spark.jars"] = ",".join(jars)
    conf[_JAVA_OPTIONS] = f"-Dlog4j2.configurationFile={packaged('log4j2.properties').as_uri()}"
    if archive is not None:
        conf[_JAVA_OPTIONS] = f"{conf[_JAVA_OPTIONS]} {archive.options}".rstrip()
    for key, value in settings.spark_conf.items():
        separator = _ADDED_TO.get(key)
        conf[key] = value if separator is None else _joined(conf.get(key, ""), value, separator)
    return conf


def _joined(ours: str, users: str, separator: str) -> str:
    """The entries of both, each once."""
    split = _JAVA_OPTION.findall if separator == " " else partial(str.split, sep=separator)
    entries = (entry.strip() for text in (ours, users) for entry in split(text))
    return separator.join(dict.fromkeys(filter(None, entries)))


def read_conf(text: str) -> dict[str, str]:
    """
    The settings of a `spark-defaults.conf`.
    """
    lines = (line.strip() for line in text.splitlines())
    matches = (_CONF_LINE.fullmatch(line) for line in lines if line and not line.startswith("#"))
    return {match["key"]: match["value"].strip() for match in matches if match}


def register_tables(spark: "SparkSession", settings: "Settings") -> list[str]:
    """
    Give every Delta table of the warehouse its name in SQL, drop names whose folder is gone; returns the names.

    A session knows the names of one warehouse at a time: those of another one are dropped, their tables stay. A table
    that Delta cannot read gets no name, and keeps no other from its own; who asks for it is told why.
    """
    warehouse = Warehouse.at(settings.warehouse)
    moved = spark.conf.get(_WAREHOUSE_NAMED, None) not in {None, warehouse.root}
    spark.conf.set(_WAREHOUSE_NAMED, warehouse.root)
    on_disk = [table for table in warehouse.tables(spark) if is_table_name(table.partition(".")[2])]
    for database in DATABASES:
        _make_database(spark, database, warehouse)
        held = {f"{database}.{name}" for name in _names(spark, database)}
        for gone in held if moved else held.difference(on_disk):
            spark.sql(f"DROP TABLE IF EXISTS {gone}")
        held = set() if moved else held
        for new in (table for table in on_disk if table.startswith(f"{database}.") and table not in held):
            try:
                register_table(spark, new, warehouse.path(new))
            except Exception as error:
                explanation = explained(error, new, warehouse.path(new))
                if explanation is None:
                    raise
                _log.info("%s has no name in SQL: %s", new, explanation)
    return on_disk


def _make_database(spark: "SparkSession", database: str, warehouse: Warehouse) -> None:
    if is_client(spark) or not _catalog(spark).databaseExists(database):
        spark.sql(f"CREATE DATABASE IF NOT EXISTS {database} LOCATION '{_quoted(warehouse.root)}/{database}'")
    if is_client(spark):
        _require_same_place(spark, database, warehouse)


def _names(spark: "SparkSession", database: str, pattern: str = "*") -> list[str]:
    """
    The tables of a database that this session has names for; looked for in a list, as a table may be broken.

    The catalog is asked itself where it is in reach: SHOW TABLES is planned and run as a query is.
    """
    if is_client(spark):
        return [row.tableName for row in spark.sql(f"SHOW TABLES IN {database} LIKE '{pattern}'").collect()]
    found = _catalog(spark).listTables(database, pattern, False)
    return [str(found.apply(place).table()) for place in range(found.size())]


def _catalog(spark: "SparkSession") -> Any:
    """The catalog of this session, in its JVM."""
    return spark._jsparkSession.sessionState().catalog()


def _require_same_place(spark: "SparkSession", database: str, warehouse: Warehouse) -> None:
    """A server has one set of names for all of its clients, and lies perhaps on another machine."""
    details = {row[0]: row[1] for row in spark.sql(f"DESCRIBE DATABASE {database}").collect()}
    known, wanted = Warehouse.at(details["Location"]), Warehouse.at(f"{warehouse.root}/{database}")
    if (known.local or known.root) != (wanted.local or wanted.root):
        raise SparkError(
            f"the Spark Connect server knows {database} at {known.root}, and the warehouse is {warehouse.root}: one "
            "server has the names of one warehouse; name that one, or start a server for this one"
        )
    if wanted.local is not None and not wanted.local.is_dir():
        raise SparkError(
            f"the Spark Connect server has made {wanted.local}, and it is not on this machine: name a warehouse that "
            "both see, a shared folder or an object store"
        )


def register_table(spark: "SparkSession", table: str, path: str) -> None:
    """
    Give the Delta table at `path` its name; a name that is there already is left alone.
    """
    spark.sql(f"CREATE TABLE IF NOT EXISTS {table} USING delta LOCATION '{_quoted(path)}'")


def know_table(spark: "SparkSession", table: str, path: str) -> None:
    """
    Give the table its name where this session has none for it: another driver may have made it since it began.
    """
    database, _, name = table.partition(".")
    if not _names(spark, database, name):
        register_table(spark, table, path)


def run_sql(spark: "SparkSession", settings: "Settings", query: str) -> "DataFrame":
    """
    The answer to a query; a mistake in it is a :class:`SparkError` of one line, an unknown table names the known ones.
    """
    from pyspark.errors import AnalysisException

    warehouse = Warehouse.at(settings.warehouse)
    if _DELTA_COMMAND.match(query):
        query = _HISTORY_DATABASE.sub("`history`.", query)
    else:
        _check_logs(query, spark, warehouse)
    with explain_failures("the query"):
        try:
            return spark.sql(query)
        except AnalysisException as error:
            _explain(error, spark, warehouse)


def _check_logs(query: str, spark: "SparkSession", warehouse: Warehouse) -> None:
    """Raise BrokenLogError for a table that a query may name: Delta answers without what an empty commit has lost."""
    if warehouse.local is None:
        return
    words = query.replace("`", "").lower()
    for table in warehouse.tables(spark):
        if table.lower() in words:
            TableLog(spark, warehouse.path(table)).check()


def _explain(error: Exception, spark: "SparkSession", warehouse: Warehouse) -> NoReturn:
    """Raise the plain error behind Spark's."""
    missing = _missing_table(error)
    if missing is None:
        raise SparkError(_first_line(error)) from error
    known = warehouse.tables(spark)
    if missing in known:
        # It is there and has no name, as Delta cannot read it: it says why when it is asked for by its path.
        with explain_failures(missing, warehouse.path(missing)):
            spark.read.format("delta").load(warehouse.path(missing))
    raise UnknownTableError(missing, known) from error


def _missing_table(error: Exception) -> str | None:
    condition = getattr(error, "getCondition", lambda: None)() or ""
    parameters: Mapping[str, str] = getattr(error, "getMessageParameters", dict)() or {}
    if not condition.startswith(("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "DELTA_TABLE_NOT_FOUND")):
        return None
    name = (
        parameters.get("relationName") or parameters.get("schemaName") or parameters.get("tableName") or "of that name"
    )
    return name.replace("`", "")


def _first_line(error: Exception) -> str:
    """The sentence of a Spark error, without the plan and the stack below it."""
    text = str(error).strip()
    line = text.splitlines()[0] if text else type(error).__name__
    return re.sub(r"\s*SQLSTATE: \w+$", "", line)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
