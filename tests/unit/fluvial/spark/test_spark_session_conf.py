"""The settings of a session, and the names of tables on disk; no Spark is started."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from fluvial.config import Settings, load_settings
from fluvial.errors import ConfigError
from fluvial.orchestration.assets.pipes import DRIVER, Submit, driver_command
from fluvial.spark.connect import ConnectError, connect
from fluvial.spark.packaged import packaged
from fluvial.spark.session import read_conf, session_conf
from fluvial.spark.warehouse import Warehouse, is_table_name, table_name_of


def test_the_user_has_the_last_word() -> None:
    conf = session_conf(Settings(spark_conf={"spark.sql.shuffle.partitions": "64", "spark.x": "y"}), ["/a.jar"])
    assert (conf["spark.sql.shuffle.partitions"], conf["spark.x"]) == ("64", "y")
    assert conf["spark.sql.session.timeZone"] == "UTC"


def test_jars_go_where_the_master_wants_them() -> None:
    local = session_conf(Settings(spark_master="local[2]"), ["/a.jar", "/b.jar"])
    assert local["spark.driver.extraClassPath"] == "/a.jar:/b.jar"
    assert "spark.jars" not in local
    cluster = session_conf(Settings(spark_master="spark://host:7077"), ["/a.jar", "/b.jar"])
    assert cluster["spark.jars"] == "/a.jar,/b.jar"
    assert "spark.driver.host" not in cluster


def test_what_a_user_has_of_jars_extensions_and_catalogs_adds_to_ours() -> None:
    delta = "io.delta.sql.DeltaSparkSessionExtension"
    mine = {
        "spark.driver.extraClassPath": "/mine.jar",
        "spark.jars": "/other.jar, /a.jar",
        "spark.sql.extensions": f"org.example.Mine,{delta}",
        "spark.sql.catalog.shop": "org.example.Catalog",
    }
    local = session_conf(Settings(spark_master="local[2]", spark_conf=mine), ["/a.jar", "/b.jar"])
    assert local["spark.driver.extraClassPath"] == "/a.jar:/b.jar:/mine.jar"
    assert local["spark.jars"] == "/other.jar,/a.jar"
    assert local["spark.sql.extensions"] == f"{delta},org.example.Mine"
    assert local["spark.sql.catalog.shop"] == "org.example.Catalog"
    assert local["spark.sql.catalog.spark_catalog"] == "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    cluster = session_conf(Settings(spark_master="spark://host:7077", spark_conf=mine), ["/a.jar", "/b.jar"])
    assert cluster["spark.jars"] == "/a.jar,/b.jar,/other.jar"
    assert cluster["spark.driver.extraClassPath"] == "/mine.jar"
    # A driver that is started with these gets them once more from the settings.
    again = session_conf(Settings(spark_master="local[2]", spark_conf=local), ["/a.jar", "/b.jar"])
    assert {key: again[key] for key in mine} == {key: local[key] for key in mine}


def test_java_options_are_told_apart_as_spark_tells_them() -> None:
    mine = """-Da="my file"  -Db="your file" -Dc='his "file' -Dd=" -XX:+UseSerialGC " -Da="my file" -De="\\" file" """
    options = session_conf(Settings(spark_conf={"spark.driver.extraJavaOptions": mine}), [])
    assert options["spark.driver.extraJavaOptions"].endswith(
        """ -Da="my file" -Db="your file" -Dc='his "file' -Dd=" -XX:+UseSerialGC " -De="\\" file\""""
    )


YARN = """
[spark]
master = "yarn"
driver.host = "10.0.0.5"
executor = {instances = 8, memory = "4g"}
"yarn.queue" = "tables"
yarn.archive = "hdfs:///spark/jars.zip"
"""
KUBERNETES = """
[spark]
master = "k8s://https://10.0.0.1:6443"
driver = {host = "fluvial.jobs.svc", port = 7078, blockManager.port = 7079}
kubernetes.namespace = "jobs"
kubernetes.container.image = "registry.example/spark:4.0.2"
kubernetes.authenticate.driver.serviceAccountName = "spark"
executor.instances = 4
sql.shuffle.partitions = 32
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            YARN,
            {
                "spark.master": "yarn",
                "spark.driver.host": "10.0.0.5",
                "spark.executor.instances": "8",
                "spark.executor.memory": "4g",
                "spark.yarn.queue": "tables",
                "spark.yarn.archive": "hdfs:///spark/jars.zip",
            },
        ),
        (
            KUBERNETES,
            {
                "spark.master": "k8s://https://10.0.0.1:6443",
                "spark.driver.host": "fluvial.jobs.svc",
                "spark.driver.port": "7078",
                "spark.driver.blockManager.port": "7079",
                "spark.kubernetes.namespace": "jobs",
                "spark.kubernetes.container.image": "registry.example/spark:4.0.2",
                "spark.kubernetes.authenticate.driver.serviceAccountName": "spark",
                "spark.executor.instances": "4",
                "spark.sql.shuffle.partitions": "32",
            },
        ),
    ],
)
def test_settings_of_the_cluster_reach_the_session_and_its_driver(
    tmp_path: Path, text: str, wanted: dict[str, str]
) -> None:
    (tmp_path / "fluvial.toml").write_text(text)
    settings = load_settings(environ={}, directory=tmp_path)
    conf = session_conf(settings, ["/a.jar", "/b.jar"])
    assert {key: conf[key] for key in wanted} == wanted
    # Executors get the jars from the driver, which listens where they can reach it.
    assert conf["spark.jars"] == "/a.jar,/b.jar"
    assert "spark.driver.bindAddress" not in conf
    assert "spark.driver.extraClassPath" not in conf
    assert conf["spark.sql.catalog.spark_catalog"] == "org.apache.spark.sql.delta.catalog.DeltaCatalog"

    submit = Submit(command=("nice", "/opt/spark/bin/spark-submit", "--driver-memory", "8g"))
    words = driver_command(submit, settings, ["/a.jar", "/b.jar"])
    assert words[:4] == ["nice", "/opt/spark/bin/spark-submit", "--master", wanted["spark.master"]]
    given = dict(word.split("=", 1) for before, word in pairwise(words) if before == "--conf")
    assert given == {key: value for key, value in conf.items() if key != "spark.master"}
    # Of two words on one setting spark-submit believes the last.
    assert words[-3:] == ["--driver-memory", "8g", str(DRIVER)]


def test_a_spark_connect_server_is_named_as_spark_does(tmp_path: Path) -> None:
    (tmp_path / "fluvial.toml").write_text('[spark]\nremote = "sc://spark.example:15002"\nsql.shuffle.partitions = 8\n')
    settings = load_settings(environ={}, directory=tmp_path)
    assert settings.spark_master == "sc://spark.example:15002"
    assert settings.spark_conf == {"spark.sql.shuffle.partitions": "8"}
    assert load_settings(environ={}, directory=tmp_path, spark_master="local[1]").spark_master == "local[1]"
    (tmp_path / "fluvial.toml").write_text('[spark]\nremote = "sc://spark.example"\nmaster = "local[2]"\n')
    with pytest.raises(ConfigError, match="both master and remote are named"):
        load_settings(environ={}, directory=tmp_path)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("sc://127.0.0.1:1", "no Spark Connect server answers at 127.0.0.1:1"),
        ("sc://host:port", "write sc://host:port"),
        ("sc://", "write sc://host:port"),
        ("sc://127.0.0.1:1/;session_id=x", "leave session_id out"),
    ],
)
def test_a_server_that_cannot_be_used_is_told_at_once(address: str, says: str) -> None:
    pytest.importorskip("grpc_status", reason="Spark Connect is an extra: fluvial[connect]")
    with pytest.raises(ConnectError, match=says):
        connect(address, {})


def test_a_client_without_its_packages_names_the_extra() -> None:
    script = (
        "import sys\n"
        "sys.modules['grpc_status'] = None\n"
        "from fluvial.spark.connect import ConnectError, connect\n"
        "try: connect('sc://127.0.0.1:1', {})\n"
        "except ConnectError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert 'pip install "fluvial[connect]"' in done.stdout


def test_java_options_of_the_user_are_added_to_ours() -> None:
    key = "spark.driver.extraJavaOptions"
    conf = session_conf(Settings(spark_conf={key: "-Dmine=1"}), [])
    assert conf[key].startswith("-Dlog4j2.configurationFile=file:")
    assert conf[key].endswith(" -Dmine=1")


def test_every_setting_of_the_file_stands_below_its_reason() -> None:
    lines = packaged("spark-defaults.conf").read_text().splitlines()
    settings = [line for line in lines if line.strip() and not line.startswith("#")]
    assert len(read_conf("\n".join(lines))) == len(settings)
    assert all(line.startswith("spark.") for line in settings)


def test_tables_are_found_by_their_logs(tmp_path: Path) -> None:
    for table in ("history/a", "state/b", "elsewhere/c"):
        log = tmp_path / table / "_delta_log"
        log.mkdir(parents=True)
        (log / f"{0:020d}.json").touch()
    (tmp_path / "marts" / "half" / "_delta_log").mkdir(parents=True)
    warehouse = Warehouse.at(str(tmp_path))
    assert warehouse.tables() == ["history.a", "state.b"]
    assert warehouse.path("history.a") == f"{tmp_path}/history/a"
    assert Warehouse.at(f"file://{tmp_path}").tables() == ["history.a", "state.b"]
    assert Warehouse.at("s3a://bucket/warehouse/").path("state.x") == "s3a://bucket/warehouse/state/x"


@pytest.mark.parametrize(("topic", "name"), [("orders", "orders"), ("eu.orders-v2", "eu_orders_v2"), ("1st", "_1st")])
def test_a_topic_gives_its_tables_a_name(topic: str, name: str) -> None:
    assert table_name_of(topic) == name
    assert is_table_name(name)
