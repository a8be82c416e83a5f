"""The Spark session of the unit tests that need one."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from fluvial.config import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A warehouse for the session, and no cluster: these tests write their tables themselves."""
    data_dir = tmp_path_factory.mktemp("data")
    return Settings(
        data_dir=data_dir,
        warehouse=str(data_dir / "warehouse"),
        bootstrap_servers="127.0.0.1:1",
        spark_master="local[2]",
        spark_conf={"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"},
    )


@pytest.fixture(scope="session")
def spark(spark_settings: Settings) -> "Iterator[SparkSession]":
    """One session for all of them, or the one that other tests of this process have started."""
    from fluvial.spark.session import build_session

    session = build_session(spark_settings, "fluvial tests")
    yield session
    session.stop()
