"""The table of apis against the handlers and against what clients were seen to need."""

from importlib.util import find_spec

import pytest

from log_broker.server.handlers.admin.api_versions import supported_apis
from log_broker.wire.apis import APIS, Api, ApiKey

# Seen to satisfy librdkafka, the Java client, Spark, aiokafka, kafka-python, franz-go, KafkaJS and kcat: only grows.
NEEDED = (
    "0:0-9 1:4-12 2:1-7 3:0-12 8:2-9 9:1-9 10:0-4 11:0-9 12:0-4 13:0-5 14:0-5 15:0-5 16:0-5 18:0-4 19:2-7 20:1-6 "
    "21:0-2 22:0-4 23:2-4 32:1-4 33:0-2 37:0-3 42:0-2 43:0-2 44:0-1 46:0-0 47:0-0 60:0-1"
)


@pytest.mark.parametrize("entry", NEEDED.split())
def test_no_version_that_clients_agreed_to_is_missing(entry: str) -> None:
    key, _, versions = entry.partition(":")
    least, _, most = versions.partition("-")
    api = APIS[int(key)]
    assert api.version_min <= int(least)
    assert api.version_max >= int(most)


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.key.name)
def test_what_is_in_the_table_has_a_handler(api: Api) -> None:
    assert find_spec(f"log_broker.server.handlers.{api.handler}") is not None


def test_what_brokers_say_to_each_other_is_not_advertised() -> None:
    advertised = {entry["api_key"] for entry in supported_apis()}
    assert ApiKey.BROKER_HEARTBEAT not in advertised
    assert ApiKey.METADATA in advertised
