"""The settings of a run as Dagster is told of them: all but the secrets."""

import gc

import pytest

from fluvial.config import Settings
from fluvial.errors import ConfigError
from fluvial.kafka import KafkaCluster
from fluvial.orchestration.run.spark_resource import SparkResource

PROPERTIES = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "ada",
    "sasl.password": "lovelace",
}


def settings_of(bootstrap_servers: str) -> Settings:
    cluster = KafkaCluster.with_properties(bootstrap_servers, **PROPERTIES)
    return Settings(bootstrap_servers=bootstrap_servers, kafka_properties=cluster.properties, local=False)


def test_secrets_stay_in_the_process() -> None:
    settings = settings_of("kafka:9093")
    made = SparkResource.of(settings)
    assert "lovelace" not in repr(made)
    assert "lovelace" not in str(made.model_dump())
    assert made.settings is settings
    # Dagster makes a resource again from its fields for each run.
    again = SparkResource(**{name: value for name, value in made.model_dump().items() if value is not None})
    assert again.settings == settings
    assert again.settings.cluster.properties.get("sasl.password") == "lovelace"


def test_two_resources_keep_their_settings_apart() -> None:
    one, two = SparkResource.of(settings_of("one:1")), SparkResource.of(settings_of("two:1"))
    assert one.held != two.held
    assert (one.settings.bootstrap_servers, two.settings.bootstrap_servers) == ("one:1", "two:1")


def test_what_the_process_no_longer_holds_is_told() -> None:
    made = SparkResource.of(settings_of("kafka:9093"))
    fields = {name: value for name, value in made.model_dump().items() if value is not None}
    del made
    gc.collect()
    with pytest.raises(ConfigError, match="the process that made it"):
        _ = SparkResource(**fields).settings


def test_without_secrets_nothing_is_held() -> None:
    assert SparkResource.of(Settings(bootstrap_servers="a:1")).held is None
