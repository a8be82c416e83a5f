"""Who may send what: every api with no right, with the right, with one that is denied, and with a prefixed one."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from api_rights import CASES, CLUSTER, CODES, FILTERED, GROUP, TOPIC, TXN, Case, O, acl

from log_broker.config.broker import BrokerConfig
from log_broker.core.cluster.controller import CreateTopic
from log_broker.core.security.acls import Acl, Operation, Permission
from log_broker.core.security.authorizer import Rights, authorizer_of
from log_broker.core.security.principal import Principal
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.batch import TRANSACTIONAL
from log_broker.records.record import build_batch
from log_broker.server.net.dispatch import _RAW, answer_here, handler_module
from log_broker.server.net.rights import guard_request
from log_broker.server.node import Node
from log_broker.wire.apis import APIS, ApiKey
from log_broker.wire.control import read_request, read_response, write_request
from log_broker.wire.framing import read_header
from log_broker.wire.principals import read_principal, write_principal
from log_broker.wire.reading import MalformedRequestError
from log_broker.wire.rights import NOTHING, Checked

PEER = "10.0.0.9:4711"
SETTINGS = {
    "authorizer.class.name": "fluvial",
    "super.users": "User:root;User:ANONYMOUS",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "delete.topic.enable": "false",
}
SIGNED_IN = Principal("ada")


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Node]:
    node = Node(BrokerConfig(data_dir=directory, port=0).with_settings(SETTINGS))
    await node.start()
    try:
        for topic, digit in (("orders", "a"), ("payments", "b")):
            await node.ensure_topic(CreateTopic(name=topic, topic_id=digit * 32))
        yield node
    finally:
        await node.stop()


async def answer_to(node: Node, request: bytes, who: Principal = SIGNED_IN) -> Any:
    header, _ = read_header(memoryview(request))
    async with asyncio.timeout(20):
        answer = await answer_here(node, request, PEER, who)
    return read_response(header.api_key, header.api_version, memoryview(answer)[4:])


def codes_in(answer: Any) -> set[int]:
    """Return all error codes of an answer."""
    if is_dataclass(answer):
        found: set[int] = set()
        for field in fields(answer):
            value = getattr(answer, field.name)
            found |= {value} if field.name in {"error_code", "partition_error_code"} else codes_in(value)
        return found
    return set().union(*map(codes_in, answer)) if isinstance(answer, tuple) else set()


REFUSALS = set(CODES.values())
KINDS: dict[str, Callable[[Case], tuple[list[Acl], bool]]] = {
    "nothing": lambda case: ([], False),
    "others-only": lambda case: ([acl(right) for right in case.given], False),
    "right": lambda case: ([acl(right) for right in (*case.given, case.right)], True),
    "all": lambda case: ([acl((right[0], Operation.ALL)) for right in (*case.given, case.right)], True),
    "prefixed": lambda case: (
        [acl(right, prefixed=right[0] is not CLUSTER) for right in (*case.given, case.right)],
        True,
    ),
    "denied": lambda case: (
        [*(acl(right) for right in (*case.given, case.right)), acl(case.right, Permission.DENY)],
        False,
    ),
    "another-host": lambda case: (
        [*(acl(right) for right in case.given), acl(case.right, host="10.0.0.1")],
        False,
    ),
}


@pytest.fixture(scope="module")
def outcomes() -> dict[tuple[str, str], tuple[set[int], bool]]:
    """Send everything to one node: by case and kind, the codes of the answer and whether it is to be allowed."""

    async def ask_all() -> dict[tuple[str, str], tuple[set[int], bool]]:
        found = {}
        with tempfile.TemporaryDirectory() as directory:
            async with running(Path(directory)) as node:
                assert node.authorizer is not None
                for case in CASES:
                    for kind, acls_of in KINDS.items():
                        if case.api is ApiKey.OFFSET_DELETE:
                            await _commit(node, "crew")  # a group that is not there is told of before its topics are
                        acls, is_allowed = acls_of(case)
                        node.authorizer.follow(acls)
                        found[str(case), kind] = await _codes(node, case, is_allowed=is_allowed), is_allowed
        return found

    return asyncio.run(ask_all())


async def _codes(node: Node, case: Case, *, is_allowed: bool) -> set[int]:
    if is_allowed and APIS[case.api].inter_broker:
        # Brokers' own requests change the cluster: that they reach their handler is enough.
        assert node.authorizer is not None
        _, body = read_header(memoryview(case.request()))
        request = read_request(case.api, case.spoken, body)
        guard_request(Rights(node.authorizer, SIGNED_IN, PEER.partition(":")[0]), case.api, case.spoken, request)
        return set()
    return codes_in(await answer_to(node, case.request()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_api(case: Case, kind: str, outcomes: dict[tuple[str, str], tuple[set[int], bool]]) -> None:
    codes, is_allowed = outcomes[str(case), kind]
    if is_allowed:
        assert not codes & REFUSALS
    else:
        assert codes & REFUSALS if kind == "nothing" else case.refusal in codes


def test_every_api_is_in_the_table_for_each_right_that_it_asks_for() -> None:
    told = {(case.api, case.right[0], case.right[1]) for case in CASES}
    for api in APIS.values():
        if api.key in FILTERED:
            continue
        for right in api.rights:
            asked = {(api.key, right.resource, operation) for operation in right.operations}
            missing = asked - told - LOOKED_AT_BELOW
            assert len(missing) < len(asked) or not missing, f"{api.key.name}: no case for {right}"


# Rights that an answer shows by what it leaves out, or that another test is about.
LOOKED_AT_BELOW = {
    (ApiKey.FETCH, CLUSTER, O.CLUSTER_ACTION),
    (ApiKey.METADATA, TOPIC, O.CREATE),
    (ApiKey.DESCRIBE_TRANSACTIONS, TOPIC, O.DESCRIBE),
    (ApiKey.CONSUMER_GROUP_DESCRIBE, TOPIC, O.DESCRIBE),
}


def test_what_rows_leave_to_handlers_has_a_guard() -> None:
    reads_itself = {*_RAW, ApiKey.METADATA}
    for api in APIS.values():
        is_inside = any(right.checked is Checked.INSIDE for right in api.rights)
        if is_inside and api.key not in reads_itself:
            assert hasattr(handler_module(api.key), "guard"), api.key.name


def test_only_what_comes_before_signing_in_and_what_is_never_served_asks_for_nothing() -> None:
    free = {api.key.name for api in APIS.values() if api.rights == NOTHING}
    assert free <= {"API_VERSIONS", "SASL_HANDSHAKE", "SASL_AUTHENTICATE", "SHARE_GROUP_HEARTBEAT"}


Story = Callable[[Node], Awaitable[None]]


@pytest.fixture(scope="module")
def tell() -> Iterator[Callable[[Iterable[Acl], Story], None]]:
    """Tell stories to one node, each with ACLs of its own."""
    with tempfile.TemporaryDirectory() as directory, asyncio.Runner() as runner:
        context = running(Path(directory))
        node = runner.run(context.__aenter__())

        def run(acls: Iterable[Acl], story: Story) -> None:
            assert node.authorizer is not None
            node.authorizer.follow(acls)
            runner.run(story(node))  # type: ignore[arg-type]

        yield run
        runner.run(context.__aexit__(None, None, None))


Tell = Callable[[Iterable[Acl], Story], None]


def asked(api: ApiKey, version: int, **values: Any) -> bytes:
    return Case(api=api, right=(CLUSTER, O.ALL), version=version, values=values).request()


def test_metadata_of_all_topics_has_those_that_may_be_described(tell: Tell) -> None:
    async def story(node: Node) -> None:
        answer = await answer_to(
            node, asked(ApiKey.METADATA, 12, topics=None, include_topic_authorized_operations=True)
        )
        assert [topic.name for topic in answer.topics] == ["orders"]
        assert answer.topics[0].topic_authorized_operations == 1 << O.READ | 1 << O.DESCRIBE
        everything = await answer_to(node, asked(ApiKey.METADATA, 12, topics=None), Principal("root"))
        assert {"orders", "payments"} <= {topic.name for topic in everything.topics}

    tell([acl((TOPIC, O.READ))], story)


def test_metadata_tells_no_name_of_a_hidden_topic_and_makes_none_without_the_right(tell: Tell) -> None:
    async def story(node: Node) -> None:
        hidden = UUID(hex=node.cluster.topics["payments"].topic_id)
        by_id = await answer_to(node, asked(ApiKey.METADATA, 12, topics=({"topic_id": hidden, "name": None},)))
        assert [(topic.name, topic.topic_id, topic.error_code) for topic in by_id.topics] == [
            (None, hidden, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        ]
        names = ({"topic_id": None, "name": "payments"}, {"topic_id": None, "name": "orders-new"})
        wish = asked(ApiKey.METADATA, 12, topics=names, allow_auto_topic_creation=True)
        named = await answer_to(node, wish)
        assert [(topic.name, topic.topic_id, topic.error_code) for topic in named.topics] == [
            ("payments", None, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
            ("orders-new", None, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ]
        assert "orders-new" not in node.cluster.topics
        assert node.authorizer is not None
        node.authorizer.follow([acl((TOPIC, O.DESCRIBE), prefixed=True), acl((TOPIC, O.CREATE), prefixed=True)])
        made = await answer_to(node, wish)
        assert {topic.error_code for topic in made.topics} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.NONE}
        assert "orders-new" in node.cluster.topics

    tell([acl((TOPIC, O.DESCRIBE), prefixed=True)], story)


def test_what_may_be_done_with_the_cluster_is_told_to_who_may_describe_it(tell: Tell) -> None:
    wish = asked(ApiKey.DESCRIBE_CLUSTER, 1, include_cluster_authorized_operations=True, endpoint_type=1)

    async def without(node: Node) -> None:
        assert (await answer_to(node, wish)).cluster_authorized_operations == 0

    async def with_it(node: Node) -> None:
        bits = (await answer_to(node, wish)).cluster_authorized_operations
        assert bits == 1 << O.DESCRIBE | 1 << O.ALTER

    tell([], without)
    tell([acl((CLUSTER, O.ALTER))], with_it)


def test_groups_are_listed_that_may_be_described_and_told_of_with_what_may_be_done(tell: Tell) -> None:
    listing, describing = (
        asked(ApiKey.LIST_GROUPS, 4),
        asked(ApiKey.DESCRIBE_GROUPS, 5, groups=("crew",), include_authorized_operations=True),
    )

    async def story(node: Node) -> None:
        for group in ("crew", "others"):
            await _commit(node, group)
        assert [group.group_id for group in (await answer_to(node, listing)).groups] == ["crew"]
        assert len((await answer_to(node, listing, Principal("root"))).groups) == 2
        (group,) = (await answer_to(node, describing)).groups
        assert group.authorized_operations == 1 << O.READ | 1 << O.DESCRIBE

    tell([acl((GROUP, O.READ))], story)


async def _commit(node: Node, group: str) -> None:
    """Commit offsets of both topics, as soon as somebody coordinates the group."""
    root = Principal("root")
    await answer_to(node, asked(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=(group,)), root)
    while codes_in(await answer_to(node, _commit_of_both(group), root)) != {ErrorCode.NONE}:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.01)


def _commit_of_both(group: str) -> bytes:
    partition = {"partition_index": 0, "committed_offset": 3, "committed_leader_epoch": -1, "committed_metadata": ""}
    topics = tuple({"name": name, "partitions": (partition,)} for name in ("orders", "payments"))
    member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
    return asked(ApiKey.OFFSET_COMMIT, 8, group_id=group, topics=topics, **member)


def test_offsets_of_topics_that_may_not_be_read_are_refused_beside_the_others(tell: Tell) -> None:
    async def story(node: Node) -> None:
        await _commit(node, "crew")
        topics = {topic.name: topic.partitions[0] for topic in (await answer_to(node, _commit_of_both("crew"))).topics}
        assert {name: found.error_code for name, found in topics.items()} == {
            "orders": ErrorCode.NONE,
            "payments": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        }

    tell([acl((GROUP, O.READ)), acl((TOPIC, O.READ))], story)


def test_offsets_of_topics_that_may_not_be_described_are_left_out(tell: Tell) -> None:
    async def story(node: Node) -> None:
        await _commit(node, "crew")
        groups = ({"group_id": "crew", "member_id": None, "member_epoch": -1, "topics": None},)
        (group,) = (await answer_to(node, asked(ApiKey.OFFSET_FETCH, 9, groups=groups))).groups
        assert [topic.name for topic in group.topics] == ["orders"]
        named = tuple({"name": name, "partition_indexes": (0,)} for name in ("orders", "payments"))
        groups = ({"group_id": "crew", "member_id": None, "member_epoch": -1, "topics": named},)
        (group,) = (await answer_to(node, asked(ApiKey.OFFSET_FETCH, 9, groups=groups))).groups
        partitions = {topic.name: topic.partitions[0] for topic in group.topics}
        assert {name: (found.committed_offset, found.error_code) for name, found in partitions.items()} == {
            "orders": (3, ErrorCode.NONE),
            "payments": (-1, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        }

    tell([acl((GROUP, O.DESCRIBE)), acl((TOPIC, O.DESCRIBE))], story)


def test_no_client_id_lets_anybody_write_to_internal_topics(tell: Tell) -> None:
    data = {"name": "__consumer_offsets", "partition_data": ({"index": 0, "records": b""},)}
    values = {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": (data,)}

    async def story(node: Node) -> None:
        await _commit(node, "crew")  # which makes the topic
        request = bytes(write_request(ApiKey.PRODUCE, 9, 1, "__admin_client", values))
        assert codes_in(await answer_to(node, request)) == {ErrorCode.INVALID_TOPIC_EXCEPTION}
        assert ErrorCode.INVALID_TOPIC_EXCEPTION not in codes_in(await answer_to(node, request, Principal("root")))

    anything = acl((TOPIC, O.ALL))

    tell([replace(anything, name="*")], story)


def test_a_transactional_id_is_asked_for_where_a_batch_is_of_a_transaction(tell: Tell) -> None:
    def produced(attributes: int, transactional_id: str | None) -> bytes:
        batch = build_batch([(0, None, b"x", ())], attributes=attributes, producer_id=1, base_sequence=0)
        data = {"name": "orders", "partition_data": ({"index": 0, "records": bytes(batch)},)}
        values = {"transactional_id": transactional_id, "acks": -1, "timeout": 1000, "topic_data": (data,)}
        return bytes(write_request(ApiKey.PRODUCE, 9, 1, "t", values))

    async def story(node: Node) -> None:
        refusal = {ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
        for transactional_id in (None, "till", "another"):
            answer = await answer_to(node, produced(TRANSACTIONAL, transactional_id))
            assert (codes_in(answer) == refusal) == (transactional_id != "till"), transactional_id
        assert codes_in(await answer_to(node, produced(0, "another"))) != refusal

    tell([acl((TOPIC, O.WRITE)), acl((TXN, O.WRITE))], story)


def test_whoever_is_no_broker_fetches_no_replica(tell: Tell) -> None:
    wish = asked(ApiKey.FETCH, 12, replica_id=1, session_epoch=-1)

    async def story(node: Node) -> None:
        assert (await answer_to(node, wish)).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    tell([acl((TOPIC, O.ALL))], story)


def test_a_principal_goes_with_what_is_passed_on(tell: Tell) -> None:
    topic = {"name": "orders3", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    inner = asked(ApiKey.CREATE_TOPICS, 7, topics=(topic,), validate_only=True)

    def envelope(principal: bytes | None, request: bytes = inner) -> bytes:
        return asked(
            ApiKey.ENVELOPE, 0, request_data=request, request_principal=principal, client_host_address=b"10.0.0.7:1"
        )

    async def story(node: Node) -> None:
        root = Principal("root")
        forged = await answer_to(node, envelope(write_principal(root)))
        assert forged.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        for who, code in ((root, ErrorCode.NONE), (Principal("bob"), ErrorCode.TOPIC_AUTHORIZATION_FAILED)):
            answer = await answer_to(node, envelope(write_principal(who)), root)
            content = read_response(ApiKey.CREATE_TOPICS, 7, memoryview(answer.response_data)[4:])
            assert content.topics[0].error_code == code, who
        broken = await answer_to(node, envelope(b"\0\1bad"), root)
        assert broken.error_code == ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE
        nested = await answer_to(node, envelope(write_principal(root), envelope(write_principal(root))), root)
        assert nested.error_code == ErrorCode.INVALID_REQUEST

    tell([acl((TOPIC, O.ALL))], story)


def test_settings_of_a_topic_that_is_made_are_shown_to_who_may_see_them(tell: Tell) -> None:
    topic = {"name": "orders4", "num_partitions": 2, "replication_factor": 1, "assignments": (), "configs": ()}
    wish = asked(ApiKey.CREATE_TOPICS, 7, topics=(topic,), validate_only=True)

    async def hidden(node: Node) -> None:
        (made,) = (await answer_to(node, wish)).topics
        assert (made.error_code, made.topic_config_error_code) == (0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        assert (made.num_partitions, made.replication_factor, made.configs) == (-1, -1, None)

    async def shown(node: Node) -> None:
        (made,) = (await answer_to(node, wish)).topics
        assert (made.topic_config_error_code, made.num_partitions) == (0, 2)
        assert made.configs

    tell([acl((TOPIC, O.CREATE), prefixed=True)], hidden)
    tell([acl((TOPIC, O.CREATE), prefixed=True), acl((TOPIC, O.DESCRIBE_CONFIGS), prefixed=True)], shown)


@pytest.mark.parametrize(
    "principal", [Principal("ada"), Principal("ä" * 300), Principal("a:b"), Principal("x", "Group")]
)
def test_a_principal_is_read_as_it_was_written(principal: Principal) -> None:
    assert read_principal(write_principal(principal)) == principal


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"\0\1\5User\4ada\0\0", b"\0\0\5User", b"\0\0\1\1\0\0", b"\0\0\3\xff\xfe\2a\0\0"]
)
def test_what_is_no_principal(data: bytes) -> None:
    with pytest.raises(MalformedRequestError):
        read_principal(data)


def test_settings_name_super_users(tmp_path: Path) -> None:
    config = BrokerConfig(data_dir=tmp_path)
    assert authorizer_of(config) is None
    named = config.with_settings({"authorizer.class.name": "fluvial", "super.users": " User:a; User:b ;"})
    authorizer = authorizer_of(named)
    assert authorizer is not None
    assert authorizer.super_users == {"User:a", "User:b"}
    with pytest.raises(BrokerError, match=r"super\.users: 'bob' is no principal"):
        authorizer_of(config.with_settings({"authorizer.class.name": "fluvial", "super.users": "bob"}))
    with pytest.raises(BrokerError, match=r"authorizer\.class\.name"):
        config.with_settings({"authorizer.class.name": "org.acme.Authorizer"})
