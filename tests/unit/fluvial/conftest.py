"""The Spark session of the unit tests that need one."""

from typing import TYPE_CHECKING

import pytest
from shared_session import SHORT_PLANS, shared_session

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
        spark_conf=dict(SHORT_PLANS),
    )


@pytest.fixture
def spark(spark_settings: Settings) -> "SparkSession":
    """The session of this process."""
    return shared_session(spark_settings)
