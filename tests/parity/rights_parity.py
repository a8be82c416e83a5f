"""
The table of rights, asked of our broker and of a running Apache Kafka: the same requests as the same users.

    python -m tests.parity.rights_parity            the table, and what differs
    python -m tests.parity.rights_parity FETCH      of these apis only
    python -m tests.parity.rights_parity --keep     the whole, and keep what Kafka answers in rights_answers.json

Each case of `api_rights` is sent in every version that both serve, by users with the right, without it, with a
prefixed one, with one that is denied, and so on. What is refused must be answered alike in every field, save texts and
addresses; what is allowed must have the same error codes.
"""

import json
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.free_ports import free_ports

sys.path.append(str(Path(__file__).parents[1] / "unit/log_broker/server"))

from api_rights import CASES, CLUSTER, GROUP, ORDERS_ID, TOPIC, TXN, Case, O, acl

from log_broker.core.security.acls import Acl, Permission
from log_broker.errors import ErrorCode
from log_broker.records.record import build_batch
from log_broker.server.embedded import run_embedded
from log_broker.wire.apis import APIS, ApiKey
from log_broker.wire.control import description_of, read_response, write_request
from log_broker.wire.messages import shape_of
from log_broker.wire.refusals import _blank
from tests.bench.broker.servers import KAFKA_ID
from tests.peers.kafka_jars import run_kafka, start_kafka

BATCH = bytes(build_batch([(0, None, b"x", ())]))
TRANSACTIONAL = bytes(
    build_batch([(0, None, b"x", ())], producer_id=1, producer_epoch=0, base_sequence=0, attributes=1 << 4)
)


def produced(records: bytes, transactional_id: str | None) -> Mapping[str, Any]:
    """Return a request that produces one record to `orders`."""
    data = {"name": "orders", "partition_data": ({"index": 0, "records": records},)}
    return {"transactional_id": transactional_id, "acks": -1, "timeout": 10_000, "topic_data": (data,)}


IN_TRANSACTION = {
    "transactions": (
        {
            "transactional_id": "till",
            "producer_id": 1,
            "producer_epoch": 0,
            "verify_only": True,
            "topics": ({"name": "orders", "partitions": (0,)},),
        },
    ),
}
SECOND = {"orders": "payments", "orders2": "payments2", "crew": "others", "till": "float"}
PAYMENTS_ID = UUID(hex="b" * 32)
PASSWORD = "parity"
ANSWERS = Path(__file__).with_name("rights_answers.json")
SECONDS_MAX = 5.0
COMMON = {
    "super.users": "User:root",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "auto.create.topics.enable": "false",
}
KAFKAS = {
    "process.roles": "broker,controller",
    "node.id": "0",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "SASL_PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:SASL_PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
    "sasl.mechanism.controller.protocol": "PLAIN",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
# What holds less instead of an error, and what is of more than one kind.
DELETED_BY_ID = {"topics": ({"name": None, "topic_id": ORDERS_ID},)}
EARLY = (
    # Before its group is deleted.
    Case(
        api=ApiKey.OFFSET_DELETE,
        right=(TOPIC, O.READ),
        values={"group_id": "crew", "topics": ({"name": "orders", "partitions": ({"partition_index": 0},)},)},
        given=[(GROUP, O.DELETE), (TXN, O.DESCRIBE)],
    ),
)
MORE = (
    Case(api=ApiKey.PRODUCE, right=(TOPIC, O.WRITE), values=produced(BATCH, None)),
    Case(api=ApiKey.PRODUCE, right=(TXN, O.WRITE), values=produced(TRANSACTIONAL, "till"), given=[(TOPIC, O.WRITE)]),
    Case(api=ApiKey.ADD_PARTITIONS_TO_TXN, right=(TXN, O.WRITE), values=IN_TRANSACTION, given=[(TOPIC, O.WRITE)]),
    Case(api=ApiKey.ADD_PARTITIONS_TO_TXN, right=(TOPIC, O.WRITE), values=IN_TRANSACTION, given=[(TXN, O.WRITE)]),
    Case(api=ApiKey.ADD_PARTITIONS_TO_TXN, right=(CLUSTER, O.CLUSTER_ACTION), values=IN_TRANSACTION),
    Case(api=ApiKey.END_TXN, right=(TXN, O.WRITE), values={"transactional_id": "till", "producer_id": 999}),
    Case(api=ApiKey.SYNC_GROUP, right=(GROUP, O.READ), values={"protocol_type": "consumer", "protocol_name": "range"}),
    Case(api=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, right=(CLUSTER, O.DESCRIBE), values={"users": ({"name": "ada"},)}),
    Case(api=ApiKey.DELETE_TOPICS, right=(CLUSTER, O.DELETE), values={"topic_names": ("orders",), **DELETED_BY_ID}),
    Case(api=ApiKey.DELETE_TOPICS, right=(TOPIC, O.DELETE), values=DELETED_BY_ID, given=[(GROUP, O.READ)]),
    Case(api=ApiKey.DELETE_TOPICS, right=(TOPIC, O.DELETE), values=DELETED_BY_ID, given=[(TOPIC, O.DESCRIBE)]),
    # Records of a transaction without an id, and an id without them.
    Case(api=ApiKey.PRODUCE, right=(TOPIC, O.ALL), values=produced(TRANSACTIONAL, None)),
    Case(api=ApiKey.PRODUCE, right=(TOPIC, O.ALL), values=produced(BATCH, "till"), given=[(TXN, O.DESCRIBE)]),
    Case(api=ApiKey.LIST_GROUPS, right=(GROUP, O.DESCRIBE)),
    Case(api=ApiKey.LIST_GROUPS, right=(CLUSTER, O.DESCRIBE)),
    Case(api=ApiKey.LIST_TRANSACTIONS, right=(TXN, O.DESCRIBE)),
    Case(
        api=ApiKey.DESCRIBE_CLUSTER,
        right=(CLUSTER, O.DESCRIBE),
        values={"include_cluster_authorized_operations": True, "endpoint_type": 1},
    ),
    Case(
        api=ApiKey.METADATA,
        right=(CLUSTER, O.DESCRIBE),
        values={
            "topics": (),
            "include_cluster_authorized_operations": True,
            "include_topic_authorized_operations": True,
        },
    ),
    Case(
        api=ApiKey.METADATA,
        right=(TOPIC, O.ALTER_CONFIGS),
        values={"topics": ({"topic_id": None, "name": "orders"},), "include_topic_authorized_operations": True},
        given=[(TOPIC, O.DESCRIBE)],
    ),
    Case(
        api=ApiKey.METADATA,
        right=(TOPIC, O.CREATE),
        values={"topics": ({"topic_id": None, "name": "orders3"},), "allow_auto_topic_creation": True},
    ),
    Case(
        api=ApiKey.DESCRIBE_GROUPS,
        right=(GROUP, O.DELETE),
        values={"groups": ("crew",), "include_authorized_operations": True},
        given=[(GROUP, O.READ)],
    ),
)


def users_of(case: Case) -> dict[str, tuple[list[Acl], bool]]:
    """Return the ACLs of each kind of user, and whether they allow what the case asks for."""
    others = [acl(right) for right in case.given]
    is_cluster = case.right[0] is CLUSTER
    return {
        "nothing": ([], False),
        "others only": (others, False),
        "right": ([*others, acl(case.right)], True),
        "all": ([acl((right[0], O.ALL)) for right in (*case.given, case.right)], True),
        "prefixed": ([*others, acl(case.right, prefixed=not is_cluster)], True),
        "any name": ([*others, acl(case.right) if is_cluster else replace(acl(case.right), name="*")], True),
        "denied": ([*others, acl(case.right), acl(case.right, Permission.DENY)], False),
        "denied by prefix": (
            [*others, acl(case.right), acl(case.right, Permission.DENY, prefixed=not is_cluster)],
            False,
        ),
        "another host": ([*others, acl(case.right, host="10.0.0.1")], False),
    }


MIXED = "one of two"
"""The right on the first of two names, which both stand in the request."""


def doubled(value: Any) -> Any:
    """Return values of a request in which each entry with a name is followed by one with another name."""
    if isinstance(value, Mapping):
        return {name: doubled(each) for name, each in value.items()}
    if not isinstance(value, tuple):
        return value
    inner = tuple(value)
    return inner + tuple(other for each in inner if (other := _second(each)) != each)


def _second(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _second(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_second, value))
    if value == ORDERS_ID:
        return PAYMENTS_ID
    return SECOND.get(value, value) if isinstance(value, str) else value


def filled(description: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with everything that a version of a message wants beside them."""
    whole = {**_blank(description), "timeout": PATIENCE_MS, "timeout_ms": PATIENCE_MS, **values}
    for each in fields(description):
        inner, value = shape_of(each.type).description, whole.get(each.name)
        if inner is not None and isinstance(value, tuple):
            whole[each.name] = tuple(filled(inner, entry) for entry in value)
    return whole


@dataclass(frozen=True, kw_only=True)
class Question:
    """A request as one user."""

    case: Case
    version: int
    kind: str
    user: str
    is_allowed: bool
    values: Mapping[str, Any]

    @property
    def right(self) -> str:
        return f"{self.case.right[0].name} {self.case.right[1].name}"

    @property
    def row(self) -> str:
        """Api, right and what is given besides: what is the same in all versions and for all kinds of users."""
        given = "".join(f", {each[0].name} {each[1].name}" for each in self.case.given)
        return f"{self.case.api.name}: {self.right}{given}"


class Table:
    """All questions, and the ACLs of all users."""

    def __init__(self, only: Sequence[str] = ()) -> None:
        self.users: dict[frozenset[Acl], str] = {}
        merged: dict[tuple[ApiKey, Any, tuple[Any, ...]], Case] = {}
        for case in (*EARLY, *CASES, *MORE):
            if not only or case.api.name in only:
                # What one version calls otherwise than another stands side by side.
                key = (case.api, case.right, tuple(case.given) if case.api not in {ApiKey.FIND_COORDINATOR} else ())
                before = merged.get(key)
                merged[key] = case if before is None else replace(case, values={**before.values, **case.values})
        # Last what takes topics away.
        self.cases = sorted(merged.values(), key=lambda case: case.api is ApiKey.DELETE_TOPICS)

    def questions(self, versions: Mapping[int, tuple[int, int]]) -> Iterator[Question]:
        """Yield what is asked; `versions` are those that Kafka serves."""
        for case in self.cases:
            api = APIS[case.api]
            low, high = versions.get(case.api, (0, -1))
            for version in range(max(low, api.version_min), min(high, api.version_max) + 1):
                if case.api is ApiKey.PRODUCE and version < PRODUCE_FROM:
                    continue
                for kind, (acls, is_allowed) in users_of(case).items():
                    if is_allowed and (api.inter_broker or case.api in CHANGING):
                        continue
                    yield self._question(case, version, kind, acls, is_allowed, case.values)
                if (two := doubled(case.values)) != case.values and not (api.inter_broker or case.api in CHANGING):
                    acls = [acl(right) for right in (*case.given, case.right)]
                    yield self._question(case, version, MIXED, acls, False, two)

    def _question(self, case: Case, version: int, kind: str, acls: list[Acl], *rest: Any) -> Question:
        is_allowed, values = rest
        user = self.users.setdefault(frozenset(acls), f"u{len(self.users)}")
        return Question(case=case, version=version, kind=kind, user=user, is_allowed=is_allowed, values=values)


# A blank one of these, allowed, would be taken seriously.
CHANGING = {ApiKey.WRITE_TXN_MARKERS, ApiKey.ALLOCATE_PRODUCER_IDS}


PRODUCE_FROM = 3
"""Kafka says that it serves those before, for old clients of librdkafka, and refuses them."""


PATIENCE_MS = 4_000
SILENCE = "no answer"


class Client:
    """A connection that has signed in by PLAIN."""

    def __init__(self, port: int, user: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), SECONDS_MAX)
        self._ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        token = f"\0{user}\0{PASSWORD}".encode()
        answer = self._ask(ApiKey.SASL_AUTHENTICATE, 1, {"auth_bytes": token})
        assert answer.error_code == 0, (user, answer)

    def ask(self, api: ApiKey, version: int, values: Mapping[str, Any]) -> Any:
        """Send a request; None where the connection is closed instead of an answer."""
        try:
            return self._ask(api, version, filled(description_of(api, version, "request"), values))
        except ConnectionError:
            return None
        except TimeoutError:
            return SILENCE

    def close(self) -> None:
        self._socket.close()

    def _ask(self, api: ApiKey, version: int, values: Mapping[str, Any]) -> Any:
        request = write_request(api, version, 7, "parity", values)
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", self._exactly(4))
        content = self._exactly(size)
        return read_response(api, version, memoryview(content)[4:])

    def _exactly(self, size: int) -> bytes:
        content = b""
        while len(content) < size:
            more = self._socket.recv(size - len(content))
            if not more:
                raise ConnectionResetError("closed")
            content += more
        return content


@dataclass
class Side:
    """One of the two brokers; what only controllers answer is asked at another port, if it has one."""

    name: str
    port: int
    controller: int
    ids: dict[UUID, UUID] = field(default_factory=dict)
    clients: dict[tuple[int, str], Client] = field(default_factory=dict)

    def ask(self, question: Question) -> Any:
        """Return an answer in the form in which it is compared, `closed` where there was none."""
        values = self._with_ids(question.values)
        answer = self.form(self._ask(question.user, question.case.api, question.version, values))
        if question.case.api is ApiKey.DELETE_TOPICS and (question.is_allowed or question.kind == MIXED):
            self._make_topics()
        return answer

    def root(self, api: ApiKey, version: int, values: Mapping[str, Any]) -> Any:
        return self._ask("root", api, version, values)

    @cached_property
    def versions(self) -> dict[int, tuple[int, int]]:
        """What both listeners say that they serve."""
        found = {}
        for port in {self.controller: None, self.port: None}:
            client = Client(port, "root")
            for each in client.ask(ApiKey.API_VERSIONS, 0, {}).api_keys:
                found[each.api_key] = (each.min_version, each.max_version)
            client.close()
        return found

    @cached_property
    def _of_brokers(self) -> set[int]:
        client = Client(self.port, "root")
        found = {each.api_key for each in client.ask(ApiKey.API_VERSIONS, 0, {}).api_keys}
        client.close()
        return found

    def prepare(self, users: Mapping[frozenset[Acl], str]) -> None:
        """Make the topics, the ACLs and a group with an offset."""
        self._make_topics()
        creations = [
            {
                "resource_type": each.resource,
                "resource_name": each.name,
                "resource_pattern_type": each.pattern,
                "principal": f"User:{user}",
                "host": each.host,
                "operation": each.operation,
                "permission_type": each.permission,
            }
            for acls, user in users.items()
            for each in acls
        ]
        for start in range(0, len(creations), 100):
            answer = self.root(ApiKey.CREATE_ACLS, 3, {"creations": tuple(creations[start : start + 100])})
            assert all(result.error_code == 0 for result in answer.results), answer
        self._until_there()

    def close(self) -> None:
        for client in self.clients.values():
            client.close()

    def form(self, value: Any, name: str = "") -> Any:
        """Return what is compared of an answer: no texts, addresses and ids, and arrays sorted."""
        if is_dataclass(value):
            found = {each.name: self.form(getattr(value, each.name), each.name) for each in fields(value)}
            is_fine = found.get("error_code") == "NONE"
            return {
                key: each
                for key, each in found.items()
                if key not in VOLATILE and not (is_fine and (isinstance(each, int) or key in OF_SUCCESS))
            }
        if isinstance(value, tuple):
            return sorted((self.form(each) for each in value), key=lambda each: json.dumps(each, sort_keys=True))
        if isinstance(value, UUID):
            return next((str(known) for known, own in self.ids.items() if own == value), "an id")
        if isinstance(value, bytes):
            return value.hex()
        if name.endswith("error_code"):
            return ErrorCode(value).name
        return "closed" if value is None and not name else value

    def _ask(self, user: str, api: ApiKey, version: int, values: Mapping[str, Any]) -> Any:
        place = (self.port if api in self._of_brokers else self.controller, user)
        client = self.clients.get(place)
        if client is None:
            client = self.clients[place] = Client(*place)
        answer = client.ask(api, version, values)
        if answer is None or answer == SILENCE:
            del self.clients[place]
            client.close()
        return answer

    def _with_ids(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: self._with_ids(each) for name, each in value.items()}
        if isinstance(value, tuple):
            return tuple(map(self._with_ids, value))
        return self.ids.get(value, value) if isinstance(value, UUID) else value

    def _make_topics(self) -> None:
        """Make the topics that are not there."""
        names = {"orders": ORDERS_ID, "payments": PAYMENTS_ID}
        topics = tuple({"name": name, "num_partitions": 1, "replication_factor": 1} for name in names)
        answer = self.root(ApiKey.CREATE_TOPICS, 7, {"topics": topics})
        for topic in answer.topics:
            assert topic.error_code in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}, answer
            if topic.error_code == ErrorCode.NONE:
                self.ids[names[topic.name]] = topic.topic_id

    def _until_there(self) -> None:
        """Wait for the coordinators, which make their topics when they are asked for first."""
        for key_type, keys in ((0, ("crew", "others")), (1, ("till", "float"))):
            self._until(
                ApiKey.FIND_COORDINATOR,
                4,
                {"key_type": key_type, "coordinator_keys": keys},
            )
        partition = {"partition_index": 0, "committed_offset": 3, "committed_leader_epoch": -1}
        partition["committed_metadata"] = ""  # type: ignore[assignment]
        topics = tuple({"name": name, "partitions": (partition,)} for name in ("orders", "payments"))
        member = {"generation_id_or_member_epoch": -1, "generation_id": -1, "member_id": "", "group_instance_id": None}
        for group in ("crew", "others"):
            self._until(ApiKey.OFFSET_COMMIT, 8, {"group_id": group, "topics": topics, **member})
        for name in ("till", "float"):
            some = {"transactional_id": name, "transaction_timeout": 60_000, "transaction_timeout_ms": 60_000}
            self._until(ApiKey.INIT_PRODUCER_ID, 4, {**some, "producer_id": -1, "producer_epoch": -1})

    def _until(self, api: ApiKey, version: int, values: Mapping[str, Any]) -> None:
        deadline = time.monotonic() + 60
        while (codes := codes_in(self.form(self.root(api, version, values)))) != {"NONE"}:
            assert time.monotonic() < deadline, (self.name, api, codes)
            time.sleep(0.1)


OF_SUCCESS = {"records", "aborted_transactions", "configs", "topic_id"}
VOLATILE = {
    "throttle_time",
    "error_message",
    "cluster_id",
    "node_id",
    "host",
    "port",
    "leader_id",
    "controller_id",
    "coordinator_id",
}


def codes_in(form: Any) -> set[str]:
    """Return the names of all errors in what is compared."""
    if isinstance(form, dict):
        own = {each for name, each in form.items() if name.endswith("error_code")}
        return own.union(*map(codes_in, form.values()))
    if isinstance(form, list):
        return set().union(*map(codes_in, form))
    return {form} if form in {"closed", SILENCE} else set()


@dataclass(frozen=True)
class Outcome:
    """What both said."""

    question: Question
    ours: Any
    kafkas: Any

    @property
    def is_equal(self) -> bool:
        if self.question.is_allowed:
            return codes_in(self.ours) == codes_in(self.kafkas)
        return bool(self.ours == self.kafkas)


@contextmanager
def our_side(users: Sequence[str]) -> Iterator[Side]:
    """Run a broker of ours that knows these users."""
    settings = {
        **COMMON,
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "authorizer.class.name": "fluvial",
        "sasl.jaas.config": _jaas(users),
    }
    with run_embedded(data_dir=None, port=0, validator=None, topics={}, settings=settings) as broker:
        side = Side("ours", broker.port, broker.port)
        try:
            yield side
        finally:
            side.close()


@contextmanager
def kafkas_side(users: Sequence[str], folder: Path) -> Iterator[Side]:
    """Run an Apache Kafka that knows these users."""
    port, controller = free_ports(2)
    listeners = f"SASL_PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}"
    settings = {
        **COMMON,
        **KAFKAS,
        "listeners": listeners,
        "controller.quorum.voters": f"0@127.0.0.1:{controller}",
        "log.dirs": str(folder / "data"),
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": _jaas(users),
        "listener.name.controller.plain.sasl.jaas.config": _jaas(users),
    }
    properties = folder / "server.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    done = run_kafka("kafka.tools.StorageTool", "format", "-t", KAFKA_ID, "-c", properties)
    assert done.returncode == 0, done.stdout + done.stderr
    log = (folder / "kafka.log").open("w")
    process = start_kafka("kafka.Kafka", properties, stdout=log, stderr=log)
    side = Side("Kafka", port, controller)
    try:
        _await(process, side, folder)
        yield side
    finally:
        side.close()
        process.kill()
        process.wait()
        log.close()


def _await(process: "subprocess.Popen[str]", side: Side, folder: Path) -> None:
    deadline = time.monotonic() + 90
    while True:
        said = (folder / "kafka.log").read_text()[-3000:]
        assert process.poll() is None, said
        assert time.monotonic() < deadline, said
        with suppress(OSError, AssertionError):
            client = Client(side.port, "root")
            answer = client.ask(ApiKey.METADATA, 12, {"topics": ()})
            client.close()
            if answer is not None and answer.brokers:
                return
        time.sleep(0.2)


def _jaas(users: Sequence[str]) -> str:
    known = " ".join(f'user_{name}="{PASSWORD}"' for name in ("root", *users))
    login = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return f'{login} required username="root" password="{PASSWORD}" {known};'


def ask_both(only: Sequence[str] = ()) -> list[Outcome]:
    """Start both, ask everything, and return what they said."""
    table = Table(only)
    everything = {key: (api.version_min, api.version_max) for key, api in APIS.items()}
    list(table.questions(everything))
    users = list(table.users.values())
    with (
        tempfile.TemporaryDirectory() as folder,
        our_side(users) as ours,
        kafkas_side(users, Path(folder)) as kafka,
    ):
        for side in (ours, kafka):
            side.prepare(table.users)
        return [
            Outcome(question, ours.ask(question), kafka.ask(question)) for question in table.questions(kafka.versions)
        ]


def different(ours: Any, kafkas: Any, path: str = "") -> Iterator[str]:
    """Yield where two answers differ."""
    if isinstance(ours, dict) and isinstance(kafkas, dict):
        for name in {**ours, **kafkas}:
            yield from different(ours.get(name, "absent"), kafkas.get(name, "absent"), f"{path}.{name}")
    elif isinstance(ours, list) and isinstance(kafkas, list) and len(ours) == len(kafkas):
        for mine, other in zip(ours, kafkas, strict=True):
            yield from different(mine, other, f"{path}[]")
    elif ours != kafkas:
        yield f"{path.lstrip('.')} is {json.dumps(ours)}, Kafka's {json.dumps(kafkas)}"


def told(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield lines about what differs, those together that differ alike."""
    alike: dict[tuple[str, str, tuple[str, ...]], list[Question]] = {}
    for outcome in outcomes:
        if not outcome.is_equal:
            ours, kafkas = outcome.ours, outcome.kafkas
            if outcome.question.is_allowed:
                ours, kafkas = sorted(codes_in(ours)), sorted(codes_in(kafkas))
            key = (outcome.question.case.api.name, outcome.question.right, tuple(different(ours, kafkas)))
            alike.setdefault(key, []).append(outcome.question)
    for (api, right, differences), questions in alike.items():
        versions = sorted({each.version for each in questions})
        kinds = ", ".join(dict.fromkeys(each.kind for each in questions))
        yield f"{api} v{versions[0]}-{versions[-1]} {right}: {kinds}"
        yield from (f"    {each}" for each in differences)


DELIBERATE = {
    (ApiKey.ALTER_CLIENT_QUOTAS, True): "quotas are not implemented, so that none are altered",
    (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, False): (
        "Kafka does not answer who asks for all users without the right, and names nobody in the entries of who asks "
        "for some; here the error is at the top in both cases, as for who has the right"
    ),
}
"""By api, and whether it was allowed: why an answer is another one than Kafka's."""


def unexplained(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return what differs and should not."""
    return [
        each
        for each in outcomes
        if not each.is_equal and (each.question.case.api, each.question.is_allowed) not in DELIBERATE
    ]


def table_of(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield a line for each api: its versions, the rights it was asked with, and how many answers are alike."""
    by_api: dict[ApiKey, list[Outcome]] = {}
    for outcome in outcomes:
        by_api.setdefault(outcome.question.case.api, []).append(outcome)
    for api, some in sorted(by_api.items()):
        versions = sorted({each.question.version for each in some})
        rights = ", ".join(dict.fromkeys(each.question.right for each in some))
        alike = f"{sum(each.is_equal for each in some)} of {len(some)}"
        yield f"{api.name:32} v{f'{versions[0]}-{versions[-1]}':6} {alike:11} {rights}"


def refused_parts(form: Any) -> list[Any]:
    """Return the entries of an answer that were refused."""
    if isinstance(form, list):
        return [part for each in form for part in refused_parts(each)]
    if not isinstance(form, dict):
        return []
    if str(form.get("error_code", "")).endswith("AUTHORIZATION_FAILED"):
        return [form]
    return [part for each in form.values() for part in refused_parts(each)]


def kept_rows(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, list[int], list[str], Any]]:
    """Yield what Kafka answers to what it refuses: row, versions and kinds of users that are answered alike, answer."""
    rows: dict[tuple[str, str], dict[int, list[str]]] = {}
    for each in outcomes:
        asked = each.question
        if each.is_equal and not asked.is_allowed:
            key = asked.row, json.dumps(each.kafkas, sort_keys=True)
            rows.setdefault(key, {}).setdefault(asked.version, []).append(asked.kind)
    for (row, answer), kinds in rows.items():
        for same in dict.fromkeys(map(tuple, kinds.values())):
            versions = [version for version, some in kinds.items() if tuple(some) == same]
            yield row, versions, list(same), json.loads(answer)


def keep(outcomes: Sequence[Outcome]) -> None:
    """Write down what Kafka answers, a line each."""
    lines = ",\n".join(json.dumps(row, sort_keys=True) for row in kept_rows(outcomes))
    ANSWERS.write_text(f"[\n{lines}\n]\n")


def unlike_kept() -> Iterator[str]:
    """Ask our broker alone; yield where it answers otherwise than Kafka did, in the first and the last version."""
    table = Table()
    versions = {key: (api.version_min, api.version_max) for key, api in APIS.items()}
    known: dict[tuple[str, int, str], Any] = {}
    for row, some, kinds, answer in json.loads(ANSWERS.read_text()):
        known |= {(row, version, kind): answer for version in some for kind in kinds}
    ends = {row: sorted({version for each, version, _ in known if each == row}) for row, _, _ in known}
    questions = [each for each in table.questions(versions) if (each.row, each.version, each.kind) in known]
    with our_side(list(table.users.values())) as ours:
        ours.prepare(table.users)
        for each in questions:
            if each.version in {ends[each.row][0], ends[each.row][-1]}:
                answer, kafkas = ours.ask(each), known[each.row, each.version, each.kind]
                if each.kind == MIXED:  # the other part depends on what was allowed before, which is not asked here
                    answer, kafkas = refused_parts(answer), refused_parts(kafkas)
                for difference in different(answer, kafkas):
                    yield f"{each.row} v{each.version}, {each.kind}: {difference}"


def main(words: Sequence[str]) -> int:
    """Print the table; return how many differences nobody has given a reason for."""
    only = [word for word in words if word != "--keep"]
    outcomes = ask_both(only)
    if "--keep" in words:
        keep(outcomes)
    for line in (*table_of(outcomes), *told(outcomes)):
        sys.stdout.write(f"{line}\n")
    for (api, _), reason in DELIBERATE.items():
        sys.stdout.write(f"on purpose, {api.name}: {reason}\n")
    equal = sum(outcome.is_equal for outcome in outcomes)
    not_asked = sorted(api.name for api in set(ApiKey) - {each.question.case.api for each in outcomes})
    sys.stdout.write(f"{equal} of {len(outcomes)} answers are alike; not asked: {', '.join(not_asked)}\n")
    return len(unexplained(outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
