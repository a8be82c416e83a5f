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


def test_what_would_have_become_of_entries_is_not_taken_from_the_request() -> None:
    topic = {"name": "x", "num_partitions": 3, "replication_factor": 2, "assignments": (), "configs": ()}
    (made,) = refused(ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout=1, validate_only=False).topics
    assert (made.num_partitions, made.replication_factor) == (-1, -1)
    partitions = [{"partition_index": 4, "offset": 1}]
    answer = refused(ApiKey.DELETE_RECORDS, 2, topics=[{"name": "x", "partitions": partitions}], timeout=1)
    assert answer.topics[0].partitions[0].low_watermark == -1


def test_entries_of_another_form_are_named_too() -> None:
    directories = [{"path": "/a", "topics": [{"name": "x", "partitions": (3, 4)}]}]
    (moved,) = refused(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, dirs=directories).results
    assert (moved.topic_name, [each.partition_index for each in moved.partitions]) == ("x", [3, 4])
    upsertion = {"name": "bob", "mechanism": 1, "iterations": 4096, "salt": b"", "salted_password": b""}
    deletions = [{"name": "ada", "mechanism": 1}, {"name": "ada", "mechanism": 2}]
    users = refused(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=deletions, upsertions=[upsertion]).results
    assert [(each.user, each.error_code) for each in users] == [("ada", STORAGE), ("bob", STORAGE)]
    entity = {"entity_type": "user", "entity_name": "ada"}
    (quota,) = refused(
        ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=[{"entity": (entity,), "ops": ()}], validate_only=True
    ).entries
    assert [(each.entity_type, each.entity_name) for each in quota.entity] == [("user", "ada")]
    asked = [{"topic": "x", "partitions": (0,)}]
    elected = refused(ApiKey.ELECT_LEADERS, 2, election_type=0, topic_partitions=asked, timeout=1)
    assert elected.error_code == STORAGE
    assert elected.replica_election_results[0].partition_result[0].error_code == STORAGE


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.key.name)
def test_every_layout_can_be_refused_whatever_the_request_holds(api: Api) -> None:
    least = 3 if api.key is ApiKey.PRODUCE else api.version_min  # kio has no older ones, which are written by hand
    for version in range(least, api.version_max + 1):
        for body in (None, memoryview(b""), memoryview(b"\0" * 64)):
            answer = write_refusal(api.key, version, 1, STORAGE, "the disk", body=body)
            read_response(api.key, version, memoryview(answer)[4:])
