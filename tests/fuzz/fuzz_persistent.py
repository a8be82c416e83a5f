"""
What requests leave behind: each field of each api at the edges of its type, sent to a real node, and then a look at all
that the node keeps.

A request is right in every field but one, so that it gets as far as it can. Afterwards nothing that is kept may be out
of its bounds, another client must be served as before, and the node must start again on what it finds.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, fields
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from log_broker.config.broker import BROKER_KEYS, BrokerConfig, ConfigKey, ConfigType
from log_broker.config.topic_keys import TOPIC_KEYS
from log_broker.core.cluster.features import told_of
from log_broker.core.cluster.image import METADATA_TOPIC
from log_broker.errors import BrokerError
from log_broker.records import build_batch
from log_broker.server.net.dispatch import answer_here
from log_broker.server.node import Node
from log_broker.sim.checks.cost_checks import out_of_bounds
from log_broker.storage.checkpoints import CLEAN_SHUTDOWN_FILE
from log_broker.wire.apis import APIS, ApiKey
from log_broker.wire.control import description_of, read_response, write_request
from log_broker.wire.messages import shape_of
from log_broker.wire.quorum import METADATA_TOPIC_ID, as_uuid

SETTINGS = {
    "controller.quorum.election.timeout.ms": "100",
    "controller.quorum.election.backoff.max.ms": "50",
    "controller.quorum.fetch.timeout.ms": "1000",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "broker.heartbeat.interval.ms": "100",
    "auto.create.topics.enable": "false",
}
WAIT_SECONDS = 0.25  # of one that waits for what never comes, the answer is not waited for
PROBE_SECONDS = 30.0
PEER = "stranger:1"
TARGET, GOOD = "target", "good"
MADE = "made-"
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "timedelta_i32": 32, "timedelta_i64": 64, "uint16": 16}
STRINGS = ("", "x" * 32_767, "x" * 40_000, "é" * 20_000, "\0", "../x")
# What ends the node's own work by rights: these are only asked with a field that is wrong.
ONLY_WRONG = frozenset({ApiKey.UNREGISTER_BROKER, ApiKey.DELETE_TOPICS, ApiKey.DELETE_GROUPS})


class Case(NamedTuple):
    """One request; `field` is what is at an edge, and `edge` at which."""

    api: ApiKey
    version: int
    field: str
    edge: Any
    values: dict[str, Any]

    def __str__(self) -> str:
        edge = f"{self.edge[:20]!r} x {len(self.edge)}" if isinstance(self.edge, str | bytes) else self.edge
        return f"{self.api.name} {self.version} with {self.field} = {edge}"


@dataclass
class Surroundings:
    """What a request must name to be taken seriously."""

    node: Node
    idempotent: tuple[int, int]  # (producer id, epoch)
    transactional: tuple[int, int]

    def values(self, api: ApiKey) -> Mapping[str, Any]:
        """Values by the names of fields."""
        node = self.node
        target = node.cluster.topics[TARGET]
        broker = node.cluster.brokers[node.config.node_id]
        producer_id, producer_epoch = self.transactional if api in TRANSACTIONAL else self.idempotent
        return {
            "name": TARGET,
            "topic": TARGET,
            "topic_name": TARGET,
            "topic_id": UUID(hex=target.topic_id),
            "names": (TARGET,),
            "cluster_id": node.cluster_id,
            "broker_id": broker.node_id,
            "broker_epoch": broker.epoch,
            "broker_ids": (broker.node_id,),
            "replicas": (broker.node_id,),
            "replica_epoch": node.quorum.epoch,
            "replica_id": -1,
            "voter_id": node.quorum.key.node_id,
            "leader_id": node.quorum.key.node_id,
            "leader_epoch": target.partitions[0].leader_epoch,
            "partition_epoch": target.partitions[0].partition_epoch,
            "current_leader_epoch": -1,
            "last_fetched_epoch": -1,
            "group_id": GOOD,
            "transactional_id": GOOD,
            "producer_id": producer_id,
            "producer_epoch": producer_epoch,
            "v3_and_below_transactional_id": GOOD,
            "v3_and_below_producer_id": producer_id,
            "v3_and_below_producer_epoch": producer_epoch,
            "generation_id": -1,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "member_epoch": 0,
            "group_instance_id": None,
            "instance_id": None,
            "protocol_type": "consumer",
            "session_timeout": 10_000,
            "rebalance_timeout": 10_000,
            "transaction_timeout": 10_000,
            "subscribed_topic_names": (TARGET,),
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "timeout": 100,
            "timeout_ms": 100,
            "max_wait": 0,
            "min_bytes": 0,
            "max_bytes": 1 << 20,
            "partition_max_bytes": 1 << 20,
            "acks": -1,
            "validate_only": False,
            "count": 2,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": (),
            "incarnation_id": uuid4(),
            "log_dirs": (uuid4(),),
            "host": "127.0.0.1",
            "port": node.port,
            "previous_broker_epoch": -1,
            "current_metadata_offset": node.cluster.version,
            "feature": "group.version",
            "features": (),
            "max_version_level": 1,
            "upgrade_type": 1,
            "leader_recovery_state": 0,
            "resource_type": 2,
            "resource_name": TARGET,
            "request_data": b"",
            "key_type": 0,
            "records": bytes(build_batch([(node.clock_ms(), b"k", b"v", ())])),
            "replica_directory_id": as_uuid(node.quorum.key.directory_id),
            "voter_directory_id": as_uuid(node.quorum.key.directory_id),
            "committed_metadata": "",
            "rack": None,
            "cursor": None,
            **(QUORUM_VALUES if api in QUORUM else {}),
            **self._of(api),
        }

    def _of(self, api: ApiKey) -> Mapping[str, Any]:
        """What only one api takes in another way than the rest."""
        match api:
            case ApiKey.CREATE_TOPICS:
                return {"name": f"{MADE}{uuid4().hex}", "configs": ()}
            case ApiKey.CREATE_PARTITIONS:
                count = len(self.node.cluster.topics[TARGET].partitions) + 1
                return {"assignments": None, "count": count if count < 20 else 1}
            case ApiKey.JOIN_GROUP:
                return {"group_id": f"classic-{uuid4().hex}", "metadata": b"", "name": "range"}
            case ApiKey.CONSUMER_GROUP_HEARTBEAT:
                return {"group_id": "consumers", "member_id": uuid4().hex, "topic_partitions": (), "rack_id": None}
            case ApiKey.BROKER_REGISTRATION:
                names = ("name", "min_supported_version", "max_supported_version")
                told = tuple(dict(zip(names, each, strict=True)) for each in told_of(self.node.features))
                return {"broker_id": uuid4().int % 2**30 + 10, "features": told}
            case ApiKey.ADD_RAFT_VOTER | ApiKey.UNREGISTER_BROKER:
                return {"voter_id": 7, "broker_id": 7}
        return {}


TRANSACTIONAL = frozenset(
    {
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.INIT_PRODUCER_ID,
    }
)
QUORUM = frozenset(
    {
        ApiKey.VOTE,
        ApiKey.BEGIN_QUORUM_EPOCH,
        ApiKey.END_QUORUM_EPOCH,
        ApiKey.FETCH_SNAPSHOT,
        ApiKey.DESCRIBE_QUORUM,
    }
)
QUORUM_VALUES = {
    "name": METADATA_TOPIC,
    "topic_name": METADATA_TOPIC,
    "topic_id": METADATA_TOPIC_ID,
    "replica_id": 7,
    "last_offset": 2**40,
}


# Cases


def cases(around: Surroundings, rng: Random) -> Iterator[Case]:
    """Yield each request at each edge of each field, of the newest and the oldest version of each api."""
    for api in APIS.values():
        for version in sorted({api.version_max, max(api.version_min, 3 if api.key == ApiKey.PRODUCE else 0)}):
            description = description_of(api.key, version, "request")
            if api.key not in ONLY_WRONG:
                yield Case(api.key, version, "nothing", None, _right(description, around.values(api.key)))
            for path, kind in _leaves(description):
                for edge in _edges(kind, rng):
                    values = _right(description, around.values(api.key))
                    _put(values, path, edge)
                    yield Case(api.key, version, ".".join(path), edge, values)
    yield from _batches(around)
    yield from _settings(around)


def _batches(around: Surroundings) -> Iterator[Case]:
    """Produce with each number of a batch's header at its edges; what a header may say is for `records` to judge."""
    base = _right(description_of(ApiKey.PRODUCE, 9, "request"), around.values(ApiKey.PRODUCE))
    numbers = {"producer_id": 64, "producer_epoch": 16, "base_sequence": 32, "leader_epoch": 32, "base_offset": 64}
    for name, bits in numbers.items():
        for edge in _integers(bits):
            producer_id, producer_epoch = around.idempotent
            right = {"producer_id": producer_id, "producer_epoch": producer_epoch, "base_sequence": 0}
            with contextlib.suppress(Exception):
                batch = build_batch([(around.node.clock_ms(), b"k", b"v", ())], **{**right, name: edge})
                values = deepcopy(base)
                _put(values, ("topic_data", "partition_data", "records"), bytes(batch))
                yield Case(ApiKey.PRODUCE, 9, f"a batch's {name}", edge, values)


def _settings(around: Surroundings) -> Iterator[Case]:
    """Set each setting of a topic and of all brokers to the edges of its type."""
    for resource_type, keys in ((2, TOPIC_KEYS), (4, BROKER_KEYS)):
        for key in keys.values():
            for edge in _texts(key):
                values = {
                    "resources": [
                        {
                            "resource_type": resource_type,
                            "resource_name": TARGET if resource_type == 2 else "",
                            "configs": [{"name": key.name, "config_operation": 0, "value": edge}],
                        }
                    ],
                    "validate_only": False,
                }
                yield Case(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, key.name, edge, values)


def _texts(key: ConfigKey) -> Sequence[str]:
    if key.type in {ConfigType.INT, ConfigType.LONG, ConfigType.SHORT, ConfigType.DOUBLE}:
        bounds = [] if key.least is None or key.most is None else [key.least, key.most, key.least - 1, key.most + 1]
        return [f"{int(each)}" for each in (*bounds, *_integers(64), *_integers(32))] + ["nan", "1e400", ""]
    return ["", "x" * 40_000]


def _integers(bits: int) -> Sequence[int]:
    top = 1 << (bits - 1)
    return (-top, -2, -1, 0, 1, top - 2, top - 1)


def _edges(kind: str, rng: Random) -> Sequence[Any]:
    if kind in BITS:
        some = _integers(BITS[kind])
        top = 1 << (BITS[kind] - 1)
        return [abs(each) for each in some] if kind.startswith("uint") else (*some, rng.randrange(-top, top))
    return STRINGS if kind == "string" else ()


def _right(description: type[Any], known: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: _right_value(field, known) for field in fields(description)}


def _right_value(field: Any, known: Mapping[str, Any]) -> Any:
    shape = shape_of(field.type)
    if shape.description is not None and field.name not in known:
        one = _right(shape.description, known)
        return (one,) if shape.is_array else one
    kind = field.metadata.get("kafka_type", "")
    value = known.get(field.name, _NEUTRAL.get(kind, 0))
    return (value,) if shape.is_array and not isinstance(value, tuple) else value


_NEUTRAL: Mapping[str, Any] = {"string": TARGET, "bytes": b"", "records": b"", "uuid": UUID(int=1), "bool": False}


def _leaves(description: type[Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    for field in fields(description):
        shape = shape_of(field.type)
        if shape.description is not None:
            yield from _leaves(shape.description, (*path, field.name))
        else:
            yield (*path, field.name), field.metadata.get("kafka_type", "")


def _put(values: Any, path: Sequence[str], edge: Any) -> None:
    """Put a value in its place, if there is one."""
    first, *rest = path
    held = values[first]
    if not rest:
        values[first] = (edge,) if isinstance(held, tuple) else edge
        return
    below = held[0] if isinstance(held, tuple | list) and held else held
    if isinstance(below, dict):
        _put(below, rest, edge)


# The node


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Node]:
    """Run a node on a folder."""
    node = Node(BrokerConfig(data_dir=folder, port=0).with_settings(SETTINGS))
    async with asyncio.timeout(PROBE_SECONDS):
        await node.start()
    try:
        yield node
    finally:
        await node.stop()


async def ask(node: Node, api: ApiKey, version: int, values: Mapping[str, Any]) -> Any:
    """Ask a node as a client does."""
    request = bytes(write_request(api, version, 1, "stranger", values))
    answer = await answer_here(node, request, PEER)
    return read_response(api, version, memoryview(answer)[4:])


async def surroundings(node: Node) -> Surroundings:
    """Make what requests are about, and look up what they must name."""
    await _is_ready(node)
    for key_type in (0, 1):
        while (await ask(node, ApiKey.FIND_COORDINATOR, 2, {"key": GOOD, "key_type": key_type})).error_code:
            await node.quorum.changes.wait(0.02)
    return Surroundings(node, await _init(node, None), await _init(node, GOOD))


async def _is_ready(node: Node) -> None:
    """Return when the node is what the next request needs: in office, alive, with the topics."""
    async with asyncio.timeout(PROBE_SECONDS):
        while not (node.is_controller and node.cluster.is_alive(node.config.node_id) and node.lease.valid):
            await node.quorum.changes.wait(0.02)
        for name in (TARGET, GOOD):
            while name not in node.cluster.topics:
                await _create(node, name)


async def _create(node: Node, name: str) -> Any:
    wanted = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    values = {"topics": (wanted,), "timeout": 5_000, "validate_only": False}
    return (await ask(node, ApiKey.CREATE_TOPICS, 5, values)).topics[0]


# What must hold afterwards


async def probe(node: Node) -> None:
    """Do as another client would: write, read, commit offsets, use a transaction, make a topic."""
    async with asyncio.timeout(PROBE_SECONDS):
        await _is_ready(node)
        producer_id, epoch = await _init(node, None)
        await _produce(node, producer_id=producer_id, producer_epoch=epoch, base_sequence=0)
        producer_id, epoch = await _init(node, "probe")
        added = {"name": GOOD, "partitions": (0,)}
        transaction = {
            "v3_and_below_transactional_id": "probe",
            "v3_and_below_producer_id": producer_id,
            "v3_and_below_producer_epoch": epoch,
            "v3_and_below_topics": (added,),
        }
        answer = await _until_ready(node, ApiKey.ADD_PARTITIONS_TO_TXN, 3, transaction)
        assert answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0, answer
        values = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": 0, "attributes": 0x10}
        await _produce(node, transactional_id="probe", **values)
        ended = {"transactional_id": "probe", "producer_id": producer_id, "producer_epoch": epoch, "committed": True}
        answer = await _until_ready(node, ApiKey.END_TXN, 3, ended)
        assert answer.error_code == 0, answer
        runtime = node.logs.led(GOOD, 0)
        assert runtime is not None
        while runtime.last_stable_offset < runtime.high_watermark:  # noqa: ASYNC110 - the marker is being written
            await asyncio.sleep(0.01)
        offset = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
        commit = {
            "group_id": "probe",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": ({"name": GOOD, "partitions": (offset,)},),
        }
        answer = await _until_ready(node, ApiKey.OFFSET_COMMIT, 8, commit)
        assert answer.topics[0].partitions[0].error_code == 0, answer
        name = f"probe-{uuid4().hex}"
        answer = await _create(node, name)
        assert answer.error_code == 0, answer
        await ask(node, ApiKey.DELETE_TOPICS, 4, {"topic_names": (name,), "timeout": 5_000})


async def _init(node: Node, transactional_id: str | None) -> tuple[int, int]:
    values = {"transactional_id": transactional_id, "transaction_timeout": 10_000}
    answer = await _until_ready(node, ApiKey.INIT_PRODUCER_ID, 2, values)
    assert answer.error_code == 0, answer
    return answer.producer_id, answer.producer_epoch


async def _until_ready(node: Node, api: ApiKey, version: int, values: Mapping[str, Any]) -> Any:
    """Ask again while a coordinator is being found, or is at work."""
    while True:
        answer = await ask(node, api, version, values)
        if not _RETRIED & {getattr(answer, "error_code", 0), *_errors_within(answer)}:
            return answer
        if api is ApiKey.OFFSET_COMMIT or values.get("transactional_id") or "v3_and_below_topics" in values:
            key_type = 0 if api is ApiKey.OFFSET_COMMIT else 1
            await ask(node, ApiKey.FIND_COORDINATOR, 2, {"key": "probe", "key_type": key_type})
        await asyncio.sleep(0.01)


_RETRIED = frozenset({14, 15, 16, 51})  # COORDINATOR_LOAD_IN_PROGRESS …, CONCURRENT_TRANSACTIONS


def _errors_within(answer: Any) -> Iterator[int]:
    for topic in (*getattr(answer, "topics", ()), *getattr(answer, "results_by_topic_v3_and_below", ())):
        for partition in (*getattr(topic, "partitions", ()), *getattr(topic, "results_by_partition", ())):
            yield getattr(partition, "error_code", 0) or getattr(partition, "partition_error_code", 0)


async def _produce(node: Node, *, transactional_id: str | None = None, **header: Any) -> None:
    batch = bytes(build_batch([(node.clock_ms(), b"k", b"v", ())], **header))
    data = {"name": GOOD, "partition_data": [{"index": 0, "records": batch}]}
    values = {"transactional_id": transactional_id, "acks": -1, "timeout": 5_000, "topic_data": [data]}
    answer = await ask(node, ApiKey.PRODUCE, 9, values)
    assert answer.responses[0].partition_responses[0].error_code == 0, answer


# Runs


@dataclass
class Report:
    """What came of a run."""

    requests: int
    findings: list[str]


class _Failures(logging.Handler):
    """Notes what the broker logs with a traceback, and after which case: a request may be refused, not surprise it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.case: Case | None = None
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(f"{record.getMessage()}: {record.exc_info[1]!r} after {self.case}")


async def run(
    folder: Path, seed: int, *, share: float = 1.0, block: int = 150, at_each: Callable[[], object] = lambda: None
) -> Report:
    """
    Send a share of all cases in blocks, and look at all that is kept after each.

    Each block is sent to another process of the node, on what the one before has left; every second one has crashed.
    """
    report = Report(0, [])
    failures = _Failures()
    logging.getLogger("log_broker").addHandler(failures)
    try:
        await _run_blocks(folder, _Plan(seed, share, block), report, failures, at_each)
    except Exception as error:
        report.findings.append(f"the node serves no more: {error!r} after {failures.case}")
    finally:
        logging.getLogger("log_broker").removeHandler(failures)
    report.findings += failures.found
    return report


class _Plan(NamedTuple):
    seed: int
    share: float
    block: int


async def _run_blocks(
    folder: Path, plan: _Plan, report: Report, failures: _Failures, at_each: Callable[[], object]
) -> None:
    rng = Random(plan.seed)
    async with running(folder) as node:
        count = sum(1 for _ in cases(await surroundings(node), Random(plan.seed)))
    todo = [number for number in range(count) if rng.random() < plan.share]
    blocks = [set(todo[at : at + plan.block]) for at in range(0, len(todo), plan.block)]
    rng.shuffle(blocks)
    known: set[str] = set()

    def note(bad: Sequence[str], when: str) -> None:
        report.findings.extend(f"{each} {when}" for each in bad if each not in known)
        known.update(bad)

    for number, wanted in enumerate(blocks):
        if number % 2:
            (folder / CLEAN_SHUTDOWN_FILE).unlink(missing_ok=True)
        async with running(folder) as node:
            around = await surroundings(node)
            for at, case in enumerate(cases(around, Random(plan.seed))):
                if at in wanted:
                    failures.case = case
                    await _send(node, case)
                    await _refresh(around, case.api)
                    note(out_of_bounds(node), f"after {case}")
                    report.requests += 1
                    at_each()
            note(await _look(node), f"in the block up to {failures.case}")
    async with running(folder) as node:
        note(await _look(node), "at the end")


async def _refresh(around: Surroundings, api: ApiKey) -> None:
    """See that the next request finds what it needs, and that what was made is not in its way."""
    node = around.node
    await _is_ready(node)
    for name in [each for each in node.cluster.topics if each.startswith(MADE)]:
        await ask(node, ApiKey.DELETE_TOPICS, 4, {"topic_names": (name,), "timeout": 5_000})
    if api in TRANSACTIONAL:
        around.transactional = await _init(node, GOOD)


async def _look(node: Node) -> list[str]:
    await _put_settings_back(node)
    bad = out_of_bounds(node)
    try:
        await probe(node)
    except Exception as error:
        bad.append(f"another client: {error!r}")
    return bad


async def _send(node: Node, case: Case) -> None:
    try:
        request = bytes(write_request(case.api, case.version, 1, "stranger", case.values))
    except Exception:
        return  # what the wire cannot say is not sent
    with contextlib.suppress(TimeoutError, BrokerError, ConnectionError):
        async with asyncio.timeout(WAIT_SECONDS):
            await answer_here(node, request, PEER)


async def _put_settings_back(node: Node) -> None:
    """Settings are there to be set; what they must not do is to last once they are taken back."""
    for resource_type, name in ((2, TARGET), (2, GOOD), (4, ""), (4, str(node.config.node_id))):
        resource = {"resource_type": resource_type, "resource_name": name, "configs": ()}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PROBE_SECONDS):
                await ask(node, ApiKey.ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False})
