"""A request that fails as a whole has every entry answered with the error, where the answer has none of its own."""

from typing import Any

import pytest

from log_broker.errors import ErrorCode
from log_broker.wire.apis import APIS, Api, ApiKey
from log_broker.wire.control import read_response, write_refusal, write_request

STORAGE = ErrorCode.KAFKA_STORAGE_ERROR


def refused(api: ApiKey, version: int, **values: Any) -> Any:
    size = 9 + 4 if APIS[api].flexible_from > version else 9 + 5
    request = memoryview(write_request(api, version, 1, "t" * 3, values))[size:]
    return read_response(
        api, version, memoryview(write_refusal(api, version, 1, STORAGE, "the disk", body=request))[4:]
    )


def test_each_topic_has_the_error_and_the_message() -> None:
    topics = [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()} for name in "xy"
    ]
    answer = refused(ApiKey.CREATE_TOPICS, 7, topics=topics, timeout=1, validate_only=False)
    assert [(topic.name, topic.error_code, topic.error_message) for topic in answer.topics] == [
        ("x", STORAGE, "the disk"),
        ("y", STORAGE, "the disk"),
    ]


def test_names_alone_are_mirrored_too() -> None:
    answer = refused(ApiKey.DELETE_TOPICS, 5, topic_names=["x", "y"], timeout=1)
    assert [(topic.name, topic.error_code) for topic in answer.responses] == [("x", STORAGE), ("y", STORAGE)]
    answer = refused(ApiKey.DELETE_GROUPS, 2, groups_names=["g"])
    assert [(group.group_id, group.error_code) for group in answer.results] == [("g", STORAGE)]


def test_partitions_are_mirrored_in_their_topics() -> None:
    partitions = [{"partition_index": 4, "offset": 1}, {"partition_index": 2, "offset": 9}]
    answer = refused(ApiKey.DELETE_RECORDS, 2, topics=[{"name": "x", "partitions": partitions}], timeout=1)
    assert answer.topics[0].name == "x"
    assert [(each.partition_index, each.error_code) for each in answer.topics[0].partitions] == [
        (4, STORAGE),
        (2, STORAGE),
    ]


def test_resources_are_named_again() -> None:
    resource = {"resource_type": 2, "resource_name": "x", "configs": ()}
    answer = refused(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
    assert [(each.resource_type, each.resource_name, each.error_code) for each in answer.responses] == [
        (2, "x", STORAGE)
    ]


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.key.name)
def test_every_layout_can_be_refused_whatever_the_request_holds(api: Api) -> None:
    least = 3 if api.key is ApiKey.PRODUCE else api.version_min  # kio has no older ones, which are written by hand
    for version in range(least, api.version_max + 1):
        for body in (None, memoryview(b""), memoryview(b"\0" * 64)):
            answer = write_refusal(api.key, version, 1, STORAGE, "the disk", body=body)
            read_response(api.key, version, memoryview(answer)[4:])
