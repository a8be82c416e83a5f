"""
One Spark session, one broker, one registry, and topics and contracts that a test makes for itself.

FLUVIAL_TEST_BOOTSTRAP_SERVERS names another cluster of the Kafka protocol to run these tests against.
"""

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from log_topic import Schemas, Topic
from shared_session import SHORT_PLANS, is_stopped, shared_session

from fluvial.config import Settings
from fluvial.testing.embedded import EmbeddedPlatform, embedded_platform

MakeTopic = Callable[..., Topic]


def pytest_configure(config: pytest.Config) -> None:
    # PySpark leaves the socket that each collect() reads from to the garbage collector, whenever that comes.
    config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(scope="session")
def platform() -> Iterator[EmbeddedPlatform]:
    """A broker and a registry that live as long as the tests do."""
    with embedded_platform() as platform:
        yield platform


@pytest.fixture(scope="session")
def bootstrap_servers(platform: EmbeddedPlatform) -> str:
    """The address of the cluster that has the topics."""
    return os.environ.get("FLUVIAL_TEST_BOOTSTRAP_SERVERS") or platform.bootstrap_servers


@pytest.fixture(scope="session")
def base_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings of the session; each test puts its own warehouse in."""
    return Settings(
        warehouse=str(tmp_path_factory.mktemp("warehouse")),
        spark_master="local[2]",
        spark_conf=dict(SHORT_PLANS),
    )


@pytest.fixture
def spark(base_settings: Settings) -> Iterator[Any]:
    """The session of this process. What a test has cached is let go of when it ends, also when it ends by an error."""
    session: Any = shared_session(base_settings)
    yield session
    assert is_stopped(session) or session._jsparkSession.sharedState().cacheManager().isEmpty(), "frames stay cached"


@pytest.fixture
def warehouse_settings(base_settings: Settings, tmp_path: Path, spark: Any) -> Settings:
    """Settings with an empty warehouse, whose names are then the only ones known."""
    from fluvial.spark.session import register_tables

    own = replace(base_settings, warehouse=str(tmp_path / "warehouse"))
    register_tables(spark, own)
    return own


@pytest.fixture
def settings(warehouse_settings: Settings, bootstrap_servers: str, platform: EmbeddedPlatform) -> Settings:
    """Settings with an empty warehouse and the cluster."""
    return replace(warehouse_settings, bootstrap_servers=bootstrap_servers, registry_url=platform.registry_url)


@pytest.fixture(scope="session")
def schemas(platform: EmbeddedPlatform) -> Iterator[Schemas]:
    with Schemas(platform.registry_url) as schemas:
        yield schemas


@pytest.fixture
def admin(bootstrap_servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})


@pytest.fixture
def make_topic(bootstrap_servers: str, admin: AdminClient, schemas: Schemas) -> Iterator[MakeTopic]:
    """A factory of topics with a first version of their contract; they are deleted after the test."""
    made: list[str] = []

    def make(
        schema: Mapping[str, Any] | None = None,
        *,
        partitions: int = 1,
        name: str | None = None,
        config: Mapping[str, str] | None = None,
    ) -> Topic:
        name = name or f"t_{uuid.uuid4().hex[:12]}"
        wanted = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        admin.create_topics([wanted])[name].result(30)
        made.append(name)
        if schema is not None:
            schemas.register(f"{name}-value", schema)
        return Topic(name=name, bootstrap_servers=bootstrap_servers, schemas=schemas, partitions=partitions)

    yield make
    if made:
        for future in admin.delete_topics(sorted(set(made))).values():
            future.exception(30)
