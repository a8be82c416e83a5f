"""The settings of a session, and the names of tables on disk; no Spark is started."""

from pathlib import Path

import pytest

from fluvial.config import Settings
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
