"""A warehouse on S3: its jars, what its sessions are told, and that nothing of it concerns other warehouses."""

from pathlib import Path

import pytest

from fluvial.config import Settings
from fluvial.spark import s3
from fluvial.spark.jars import read_lock
from fluvial.spark.packaged import packaged
from fluvial.spark.session import session_conf

LOG_STORE = "spark.delta.logStore.s3a.impl"


def test_the_lock_holds_what_is_asked_for_and_nothing_that_spark_ships() -> None:
    locked = read_lock(packaged(s3.LOCK_NAME))
    for package in s3.S3Jars().packages:
        group, artifact, version = package.split(":")
        assert f"{group}_{artifact}-{version}.jar" in locked
    names = {name.partition("_")[2] for name in locked}
    assert [name for name in names if name.startswith(("netty-buffer", "netty-codec", "slf4j", "bundle"))] == []


def test_hadoop_is_the_one_that_spark_ships() -> None:
    import pyspark

    shipped = Path(pyspark.__file__).parent / "jars"
    assert (shipped / f"hadoop-client-api-{s3.HADOOP}.jar").exists()


@pytest.mark.parametrize(
    ("warehouse", "master", "told"),
    [
        ("s3a://lake/w", "local[2]", s3.LOG_STORE),
        ("s3a://lake/w", "spark://host:7077", s3.LOG_STORE),
        ("s3a://lake/w", "sc://host:15002", None),  # the server has its own
        ("abfss://lake/w", "local[2]", None),
        ("/s3a/w", "local[2]", None),
    ],
)
def test_a_session_on_s3_commits_on_a_condition(warehouse: str, master: str, told: str | None, tmp_path: Path) -> None:
    conf = session_conf(Settings(data_dir=tmp_path, warehouse=warehouse, spark_master=master), [])
    assert conf.get(LOG_STORE) == told


def test_a_log_store_of_the_users_own_is_taken(tmp_path: Path) -> None:
    own = {LOG_STORE: "io.delta.storage.S3DynamoDBLogStore"}
    settings = Settings(data_dir=tmp_path, warehouse="s3a://lake/w", spark_conf=own)
    assert session_conf(settings, [])[LOG_STORE] == own[LOG_STORE]


def test_the_class_has_the_name_that_delta_is_told() -> None:
    source = Path(s3.__file__).with_name("ConditionalLogStore.java").read_text(encoding="utf-8")
    package, _, name = s3.LOG_STORE.rpartition(".")
    assert f"package {package};" in source
    assert f"public class {name} " in source
