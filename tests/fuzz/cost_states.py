"""
What is stored or held first, and then every request on top of it: cost that someone else has prepared.

A state is grown like any other input; each size is a node of its own, on which every api is asked once as it is, in
each of its variants, and with each number of its request at an edge.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence

from cost_corpus import LAST, PRODUCED_TO, VARIANTS, WIDE
from cost_mutations import NO_REQUEST, Case, Mutation, bomb_of, edges_of, places_of, versions_of
from cost_search import Bench, Finding, Search
from fuzz_node import Wire, framed

from log_broker.records import Codec, build_batch
from log_broker.wire.apis import APIS, ApiKey
from log_broker.wire.control import write_request

Requests = Sequence[tuple[ApiKey, int, dict[str, object]]]
AHEAD_MS = 600_000  # of what else is in the partitions: a search by time ends in what was stored here
ROW = 200  # requests that are sent before their answers are read
CHANGING = frozenset(
    {ApiKey.DELETE_TOPICS, ApiKey.DELETE_RECORDS, ApiKey.END_QUORUM_EPOCH, ApiKey.BEGIN_QUORUM_EPOCH, ApiKey.VOTE}
)


async def _all(port: int, requests: Requests) -> int:
    """Send requests in rows and return how many were answered."""
    wire = await Wire.open(port)
    answered = 0
    try:
        for begin in range(0, len(requests), ROW):
            row = requests[begin : begin + ROW]
            wire.writer.write(
                b"".join(framed(write_request(key, version, 1, "state", values)) for key, version, values in row)
            )
            async with asyncio.timeout(60):
                for _ in row:
                    await wire.frame()
                    answered += 1
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        pass
    await wire.close()
    return answered


def _produce(topic: str, partition: int, batch: bytes, **more: object) -> tuple[ApiKey, int, dict[str, object]]:
    partitions = [{"index": partition, "records": batch}]
    values = {"transactional_id": None, "acks": -1, "timeout": 10_000,
              "topic_data": [{"name": topic, "partition_data": partitions}], **more}  # fmt: skip
    return ApiKey.PRODUCE, 9, values


def _bombs(codec: Codec, variant: str) -> Callable[[Bench, int], Requests]:
    def requests(bench: Bench, size: int) -> Requests:
        now_ms = bench.world.now_ms + AHEAD_MS
        return [_produce(topic, 0, bomb_of(codec, variant, size, now_ms)) for topic in PRODUCED_TO]

    return requests


def _batches(bench: Bench, size: int) -> Requests:
    batch = bench.world.batch
    return [_produce("plain", 0, batch) for _ in range(size)]


def _producers(bench: Bench, size: int) -> Requests:
    return [
        _produce("plain", 0, bytes(build_batch([(bench.world.now_ms, b"k", b"v", ())], producer_id=10_000 + at,
                                               producer_epoch=0, base_sequence=0)))
        for at in range(size)
    ]  # fmt: skip


def _producer_ids(bench: Bench, size: int) -> Requests:
    """Ids far apart and near the end of their type."""
    return [
        _produce("plain", 0, bytes(build_batch([(bench.world.now_ms, b"k", b"v", ())], producer_id=2**63 - 1 - at,
                                               producer_epoch=2**15 - 1, base_sequence=2**31 - 1)))
        for at in range(min(size, 100))
    ]  # fmt: skip


def _topics(bench: Bench, size: int) -> Requests:
    topics = [
        {"name": f"many-{at}", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
        for at in range(min(size, 2_000))
    ]
    return [
        (ApiKey.CREATE_TOPICS, 5, {"topics": topics[at : at + 100], "timeout": 10_000, "validate_only": False})
        for at in range(0, len(topics), 100)
    ]


def _partitions(bench: Bench, size: int) -> Requests:
    topic = {
        "name": "many",
        "num_partitions": min(size, 2_000),
        "replication_factor": 1,
        "assignments": (),
        "configs": (),
    }
    return [(ApiKey.CREATE_TOPICS, 5, {"topics": [topic], "timeout": 10_000, "validate_only": False})]


def _groups(bench: Bench, size: int) -> Requests:
    return [_commit(f"many-{at}", [0]) for at in range(size)]


def _commit(group: str, partitions: Sequence[int]) -> tuple[ApiKey, int, dict[str, object]]:
    entries = [
        {"partition_index": at, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": "m" * 100}
        for at in partitions
    ]
    values = {"group_id": group, "generation_id_or_member_epoch": -1, "generation_id": -1, "member_id": "",
              "group_instance_id": None, "topics": [{"name": "wide", "partitions": entries}]}  # fmt: skip
    return ApiKey.OFFSET_COMMIT, 8, values


def _offsets(bench: Bench, size: int) -> Requests:
    """The offsets of one group, again and again."""
    return [_commit("group-of-offsets", range(WIDE)) for _ in range(max(size // WIDE, 1))]


def _members(bench: Bench, size: int) -> Requests:
    """They are not answered while the group is being formed, so only the first row is sent: 200 of them."""
    values = {"group_id": "group-of-many", "session_timeout": 60_000, "rebalance_timeout": 1_000, "member_id": "",
              "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b"\0" * 100}]}  # fmt: skip
    return [(ApiKey.JOIN_GROUP, 2, values) for _ in range(min(size, ROW))]


def _consumers(bench: Bench, size: int) -> Requests:
    return [
        (ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, {
            "group_id": "consumers", "member_id": f"member-{at}", "member_epoch": 0, "instance_id": None,
            "rack_id": None,
            "rebalance_timeout": 60_000, "subscribed_topic_names": ("wide",), "server_assignor": None,
            "topic_partitions": (),
        })
        for at in range(min(size, 1_000))
    ]  # fmt: skip


def _transactions(bench: Bench, size: int) -> Requests:
    return [
        (ApiKey.INIT_PRODUCER_ID, 3, {"transactional_id": f"many-{at}", "transaction_timeout": 60_000,
                                      "producer_id": -1, "producer_epoch": -1})
        for at in range(min(size, 10_000))
    ]  # fmt: skip


def _aborted(bench: Bench, size: int) -> Requests:
    """Transactions in one partition, each with a record and its end, as another broker's coordinator would write it."""
    requests: list[tuple[ApiKey, int, dict[str, object]]] = []
    producer_id, epoch = bench.world.producer
    for at in range(min(size, 2_000)):
        requests += [
            (ApiKey.ADD_PARTITIONS_TO_TXN, 3, {
                "v3_and_below_transactional_id": "tx", "v3_and_below_producer_id": producer_id,
                "v3_and_below_producer_epoch": epoch, "v3_and_below_topics": [{"name": "plain", "partitions": (0,)}],
                "transactional_id": "tx", "producer_id": producer_id, "producer_epoch": epoch,
                "topics": [{"name": "plain", "partitions": (0,)}],
            }),
            _produce("plain", 0, bytes(build_batch([(bench.world.now_ms, b"k", b"v", ())], producer_id=producer_id,
                     producer_epoch=epoch, base_sequence=at, attributes=0x10)), transactional_id="tx"),
            (ApiKey.END_TXN, 3, {"transactional_id": "tx", "producer_id": producer_id, "producer_epoch": epoch,
                                 "committed": False}),
        ]  # fmt: skip
    return requests


def _sessions(bench: Bench, size: int) -> Requests:
    partitions = [
        {"partition": at, "current_leader_epoch": -1, "fetch_offset": 0, "log_start_offset": -1,
         "partition_max_bytes": 1, "last_fetched_epoch": -1}
        for at in range(WIDE)
    ]  # fmt: skip
    values = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1, "isolation_level": 0, "session_id": 0,
              "session_epoch": 0, "topics": [{"topic": "wide", "partitions": partitions}], "forgotten_topics_data": (),
              "rack_id": ""}  # fmt: skip
    return [(ApiKey.FETCH, 11, values) for _ in range(min(size, 2_000))]


def _segments(bench: Bench, size: int) -> Requests:
    topic = {"name": "segments", "num_partitions": 1, "replication_factor": 1, "assignments": (),
             "configs": [{"name": "segment.bytes", "value": "1048576"}]}  # fmt: skip
    big = bytes(build_batch([(bench.world.now_ms, b"k", b"v" * 1_000_000, ())]))
    made = (ApiKey.CREATE_TOPICS, 5, {"topics": [topic], "timeout": 10_000, "validate_only": False})
    return [made, *(_produce("segments", 0, big) for _ in range(min(size // 20, 100)))]


def _configs(bench: Bench, size: int) -> Requests:
    values = {
        "resources": [
            {
                "resource_type": 2, "resource_name": "plain",
                "configs": [{"name": "retention.ms", "config_operation": 0, "value": str(1_000_000 + size)}],
            }
        ],
        "validate_only": False,
    }  # fmt: skip
    return [(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, values) for at in range(min(size, 2_000))]


STATES: Mapping[str, Callable[[Bench, int], Requests]] = {
    **{
        f"{codec.name.lower()} {variant} records": _bombs(codec, variant)
        for codec, variant in (
            (Codec.ZSTD, "same"),
            (Codec.ZSTD, "counted"),
            (Codec.GZIP, "odd"),
            (Codec.LZ4, "keyed"),
            (Codec.ZSTD, "late"),
            (Codec.NONE, "empty"),
            (Codec.ZSTD, "headers"),
        )
    },
    "batches": _batches,
    "producers": _producers,
    "producer ids at their end": _producer_ids,
    "topics": _topics,
    "partitions": _partitions,
    "groups": _groups,
    "offsets of a group": _offsets,
    "members of a group": _members,
    "consumers of a group": _consumers,
    "transactional ids": _transactions,
    "aborted transactions": _aborted,
    "fetch sessions": _sessions,
    "segments": _segments,
    "config changes": _configs,
}
SIZES = (10_000, 100_000, 1_000_000)
SIZES_OF_REQUESTS = (1_000, 10_000)


def asked_of_state(now_ms: int, keys: Sequence[ApiKey]) -> list[Case]:
    """Return every api as it is, in its variants, and with each number at an edge; those that take things away last."""
    cases = []
    for key in sorted(keys, key=lambda key: key in CHANGING):
        version = versions_of(key)[-1]
        for variant in ("", *VARIANTS.get(key, {})):
            cases.append(Case(key, version, variant=variant))
            for place in places_of(key, version):
                if place.kind != "int64":
                    continue
                edges = edges_of(place.kind)
                if place.path[-1] == "timestamp":
                    edges = (now_ms, now_ms + 50, now_ms - 1, -2, -3, -4, -5, *edges)
                cases += [Case(key, version, (Mutation("edge", place.path, edge),), variant=variant) for edge in edges]
    return cases


async def run_states(
    search: Search,
    names: Sequence[str],
    keys: Sequence[ApiKey] = (),
    at_each: Callable[[int], object] = lambda count: None,
) -> None:
    asked = keys or [api.key for api in APIS.values() if api.key not in LAST and api.key not in CHANGING]
    for name in names:
        for size in SIZES if "records" in name else SIZES_OF_REQUESTS:
            if await _is_dear(search, name, size, asked):
                break
        at_each(1)


async def _is_dear(search: Search, name: str, size: int, keys: Sequence[ApiKey]) -> bool:
    """Say whether the state itself could not be had for its cost, or anything asked of it was out of bounds."""
    bench = search.bench
    await bench.ready(fresh=True)
    requests = STATES[name](bench, size)
    sent = sum(len(write_request(key, version, 1, "state", values)) for key, version, values in requests)
    place = f"state {name} x {size}"
    async with bench.measured(sent, requests=len(requests), files=True) as cost:
        assert bench.node is not None
        answered = await _all(bench.node.port, requests)
    search.note(f"{place}", cost)
    # Rows of many requests are no one request: of their turns only those that stop the node count here.
    kinds = {kind: said for kind, said in cost.broken().items() if kind != "turn" or cost.turn > 0.5}
    if kinds:
        await search.keep(Finding(f"{place} ({answered} of {len(requests)} answered)", kinds, cost, place))
        if "answer" in kinds:
            return True
    if bench.node is None:
        return True
    found = False
    dear: set[ApiKey] = set()
    for case in asked_of_state(bench.world.now_ms + AHEAD_MS, keys):
        if case.key in dear:
            continue
        if bench.node is None:
            await bench.ready()
            assert bench.node is not None
            await _all(bench.node.port, STATES[name](bench, size))
        with contextlib.suppress(*NO_REQUEST):
            if await _tried_twice(search, place, case):
                dear.add(case.key)
                found = True
    return found


async def _tried_twice(search: Search, place: str, case: Case) -> bool:
    bench = search.bench
    cost = await bench.send(bench.frames_of(case))
    search.note(f"{case} over {place}", cost)
    if not cost.broken():
        return False
    if bench.node is None:
        await search.keep(Finding(f"{case} over {place}", cost.broken(), cost, place))
        return True
    again = await bench.send(bench.frames_of(case))
    kinds = {kind: said for kind, said in again.broken().items() if kind in cost.broken()}
    if kinds:
        await search.keep(Finding(f"{case} over {place}", kinds, again, place))
    else:
        search.counts["out of bounds once"] += 1
        search.once.append(f"{case} over {place}: {cost.broken()}")
    return bool(kinds)
