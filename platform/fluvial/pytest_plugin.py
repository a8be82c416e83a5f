"""
The pytest plugin: Spark, a platform in this process, and declared tables on them, for the tests of a project.

`spark` is one session for all tests, `embedded_platform` a broker and a registry of one test, and `run_tables` brings
the project's tables up to date there. `log_broker.pytest_plugin` has brokers alone. Nothing of Spark or the broker is
imported before a test asks for it.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fluvial.testing import EmbeddedPlatform, Tables

# A test's data is small: starting tasks and compiling code for them takes longer than all rows do.
FAST = {
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@pytest.fixture(scope="session")
def spark_conf() -> Mapping[str, str]:
    """Spark settings beside those made for tests; a project's conftest.py overrides this fixture."""
    return {}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, spark_conf: Mapping[str, str]) -> "Iterator[SparkSession]":
    """A local Spark session with Delta, Kafka and Avro that all tests share; its settings are quick for few rows."""
    from fluvial.extras import needed

    with needed():
        from pyspark import SparkContext
    from fluvial.config import Settings
    from fluvial.spark.session import build_session

    others = SparkContext._active_spark_context is not None
    settings = Settings(
        warehouse=str(tmp_path_factory.mktemp("warehouse")), spark_master="local[2]", spark_conf={**FAST, **spark_conf}
    )
    session = build_session(settings, "fluvial tests")
    yield session
    if not others:
        session.stop()


@pytest.fixture
def embedded_platform() -> "Iterator[EmbeddedPlatform]":
    """A broker and a schema registry of this test alone, in this process."""
    from fluvial.testing.embedded import embedded_platform

    with embedded_platform() as platform:
        yield platform


@pytest.fixture
def run_tables(embedded_platform: "EmbeddedPlatform", spark: "SparkSession", tmp_path: Path) -> "Callable[..., Tables]":
    """Bring tables up to date on `embedded_platform`: `run_tables("my_project")`; again, for what was sent since."""
    from fluvial.testing.tables import run_tables

    call: Any = partial(run_tables, platform=embedded_platform, spark=spark, warehouse=tmp_path / "warehouse")
    return call  # type: ignore[no-any-return]
