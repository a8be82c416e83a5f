"""The names that a session gives to the tables of a warehouse."""

import logging
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from pyspark.errors import AnalysisException

from fluvial.config import Settings
from fluvial.spark.class_archive import ClassArchive
from fluvial.spark.jars import require_jars
from fluvial.spark.java import require_java
from fluvial.spark.session import UnknownTableError, register_tables, run_sql
from fluvial.spark.warehouse import Warehouse

pytestmark = pytest.mark.spark


def test_a_session_that_moves_to_another_warehouse_reads_its_tables(
    spark: Any, base_settings: Settings, tmp_path: Path
) -> None:
    for folder, rows in (("one", 1), ("two", 2)):
        settings = replace(base_settings, warehouse=str(tmp_path / folder))
        spark.range(rows).write.format("delta").save(Warehouse.at(settings.warehouse).path("history.moved"))
        assert "history.moved" in register_tables(spark, settings)
        assert run_sql(spark, settings, "select count(*) n from history.moved").first()["n"] == rows
    assert Path(Warehouse.at(str(tmp_path / "one")).path("history.moved")).is_dir(), "only the name is dropped"


def test_an_unknown_table_is_answered_with_the_known_ones(spark: Any, warehouse_settings: Settings) -> None:
    with pytest.raises(UnknownTableError, match=r"no table history\.nothing"):
        run_sql(spark, warehouse_settings, "select * from history.nothing")


def test_classes_that_are_asked_for_often_are_looked_up_once(spark: Any) -> None:
    assert spark._jvm.scala.Option is spark._jvm.scala.Option
    assert spark._jvm.PythonUtils is spark._jvm.PythonUtils
    assert spark._jvm.functions.upper is not None
    assert spark._jvm.java.util.ArrayList([1, 2]).size() == 2
    assert spark._jvm.java.util.Optional.empty().isEmpty(), "what is not among them is found as before"


def test_a_session_reads_its_classes_from_the_archive(spark: Any) -> None:
    archive = ClassArchive.of(require_java(), require_jars())
    if archive.file is None:
        pytest.skip("no archive here: `python -m fluvial.spark.jars` makes it")
    mapped = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/maps")
    if not mapped.exists():
        pytest.skip("what a process has mapped is not told here")
    assert str(archive.file) in mapped.read_text()


WITH_JARS_OF_ONES_OWN = """
from dataclasses import replace
from fluvial.config import load_settings
from fluvial.spark.session import build_session, run_sql

settings = load_settings()
spark = build_session(settings)
loader = spark._jvm.Thread.currentThread().getContextClassLoader()
print([loader.getResource(name) is not None for name in ("in-the-class-path.txt", "among-the-jars.txt")])
spark.range(3).write.format("delta").save(settings.warehouse + "/history/numbers")
print(spark.read.format("delta").load(settings.warehouse + "/history/numbers").count())
print("APP" in [row[0] for row in spark.sql("show namespaces in shop").collect()])
print(spark.sql("describe history delta.`" + settings.warehouse + "/history/numbers`").count())
spark.stop()
"""


def where_the_machines_name_resolves_to_nothing() -> list[str]:
    """What a command is put behind for that; nothing where namespaces are not allowed."""
    within = ["unshare", "--uts", "--user", "--map-root-user", "sh", "-c", 'hostname no-such-name; exec "$@"', "sh"]
    tried = subprocess.run([*within, "getent", "hosts", "no-such-name"], capture_output=True, check=False)
    return within if tried.returncode == 2 else []  # of getent: no such name


def test_delta_is_there_beside_jars_and_a_catalog_of_ones_own(tmp_path: Path) -> None:
    """On a machine whose own name resolves to no address, too: laptops and containers are such."""
    for name in ("in-the-class-path", "among-the-jars"):
        with zipfile.ZipFile(tmp_path / f"{name}.jar", "w") as jar:
            jar.writestr(f"{name}.txt", "mine")
    catalog = "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog"
    (tmp_path / "fluvial.toml").write_text(f"""
warehouse = "{tmp_path}/warehouse"
[spark]
master = "local[1]"
driver.extraClassPath = "{tmp_path}/in-the-class-path.jar"
jars = "{tmp_path}/among-the-jars.jar"
sql.extensions = "org.example.NotThere"
"sql.catalog.shop" = "{catalog}"
"sql.catalog.shop.url" = "jdbc:derby:memory:shop;create=true"
"sql.catalog.shop.driver" = "org.apache.derby.iapi.jdbc.AutoloadedDriver"
""")
    program = tmp_path / "program.py"
    program.write_text(WITH_JARS_OF_ONES_OWN)
    command = [*where_the_machines_name_resolves_to_nothing(), sys.executable, str(program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[True, True]", "3", "True", "1"]


def test_a_refused_query_is_said_once_also_after_a_server_has_configured_logging(
    spark: Any, settings: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    uvicorn.Config("no:app")
    with pytest.raises(AnalysisException, match="no_such_column"):
        spark.sql("select no_such_column")
    with pytest.raises(AnalysisException, match="no_such_column"):
        spark.range(1).selectExpr("no_such_column")
    assert "no_such_column" not in "".join(capfd.readouterr())

    # pytest adds the handler of `caplog` to each logger that does not propagate.
    handler, formatter = logging.NullHandler(), logging.Formatter("%(message)s")
    handler.setFormatter(formatter)
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).removeHandler(handler)
    assert handler.formatter is formatter


WITH_A_JVM_STARTED_AHEAD = """
import threading
from fluvial.config import load_settings
from fluvial.spark.session import build_session, has_session, start_ahead
from pyspark import SparkContext

settings = load_settings()
start_ahead(settings, is_short=lambda: IS_SHORT)
next(each for each in threading.enumerate() if each.name == "jvm-start").join()
ahead = SparkContext._gateway
assert ahead is not None and not has_session()
spark = build_session(settings)
assert spark.sparkContext._gateway is ahead, "a second JVM was started"
assert spark.range(3).count() == 3
print(*spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments())
"""


@pytest.mark.parametrize(("is_short", "options"), [(False, ""), (True, ""), (True, "-Dmine=1")])
def test_a_session_uses_the_jvm_that_was_started_ahead(tmp_path: Path, is_short: bool, options: str) -> None:
    if options:
        (tmp_path / "fluvial.toml").write_text(f'[spark]\n"driver.extraJavaOptions" = "{options}"\n')
    command = [sys.executable, "-c", WITH_A_JVM_STARTED_AHEAD.replace("IS_SHORT", str(is_short))]
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_SUBMIT_OPTS"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert ("-XX:TieredStopAtLevel=1" in done.stdout.split()) is (is_short and not options)
    assert options in done.stdout
