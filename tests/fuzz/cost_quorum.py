"""
What strangers say to a metadata quorum: three nodes, every message between them with every number at its edges.

Afterwards the numbers that were saved must be such that the quorum can go on, before and after all were started again.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from cost_corpus import VARIANTS, World, values_of
from cost_mutations import BITS, NO_REQUEST, Case, Mutation, edges_of, places_of, request_of, versions_of
from cost_node import CostNode, DeadNodeError
from cost_search import Cost, Finding, Search
from fuzz_node import Wire, framed

from log_broker.wire.apis import ApiKey
from tests.free_ports import free_ports

NODES = 3
EPOCH_MAX = 1 << 20  # no quorum has come so far in a run as short as this
ANSWER_SECONDS = 1.0
TOPIC_SECONDS = 30.0
ASKED = (
    ApiKey.VOTE,
    ApiKey.BEGIN_QUORUM_EPOCH,
    ApiKey.END_QUORUM_EPOCH,
    ApiKey.FETCH,
    ApiKey.FETCH_SNAPSHOT,
    ApiKey.UPDATE_RAFT_VOTER,
    ApiKey.BROKER_HEARTBEAT,
    ApiKey.BROKER_REGISTRATION,
    ApiKey.ALTER_PARTITION,
    ApiKey.ALLOCATE_PRODUCER_IDS,
    ApiKey.UNREGISTER_BROKER,
)


async def run_quorum(search: Search) -> None:
    """Send all of it to each node; a finding ends what one api says, and the next has other nodes."""
    for key in ASKED:
        nodes = _nodes()
        try:
            await asyncio.gather(*(node.start() for node in nodes))
            await _made(nodes[0].port, f"before-{key.name.lower()}")
            found = await _hostile(nodes, key)
            if not found:
                found = await _afterwards(nodes, key)
            if found:
                await search.keep(Finding(f"{key.name} to a quorum of {NODES}", {"quorum": found}, Cost(), "quorum"))
        finally:
            for node in nodes:
                with contextlib.suppress(AttributeError):  # it never started
                    await node.stop()
                node.remove()


def _nodes() -> list[CostNode]:
    ports = free_ports(NODES)
    voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(ports))
    settings = {"controller.quorum.voters": voters, "default.replication.factor": NODES}
    return [CostNode(settings={**settings, "node.id": number}, port=port) for number, port in enumerate(ports)]


async def _hostile(nodes: list[CostNode], key: ApiKey) -> str:
    """Return what became of the quorum's numbers, nothing if they stayed in bounds."""
    wire = await Wire.open(nodes[0].port)
    described = await wire.ask(ApiKey.DESCRIBE_CLUSTER, 0, {"include_cluster_authorized_operations": False})
    await wire.close()
    for node in nodes:
        for what, frame in _messages(key, described.cluster_id):
            wire = await Wire.open(node.port)
            wire.writer.write(frame)
            with contextlib.suppress(TimeoutError, OSError, asyncio.IncompleteReadError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    await wire.frame()
            await wire.close()
            for each in nodes:
                epoch = each.saved_numbers().get("leaderEpoch", 0)
                if epoch > EPOCH_MAX:
                    return f"{len(frame)} bytes, {what}: a saved epoch of {epoch}"
            if not all(each.is_running for each in nodes):
                return (
                    f"{len(frame)} bytes, {what}: a node ended: {[each.why() for each in nodes if not each.is_running]}"
                )
    return ""


def _messages(key: ApiKey, cluster_id: str) -> Iterator[tuple[str, bytes]]:
    version = versions_of(key)[-1]
    variant = "quorum" if key is ApiKey.FETCH else ""
    assert not variant or variant in VARIANTS[key]
    for told in (None, cluster_id, "another"):
        for sender in (0, 1, 9):
            who: Mapping[str, Any] = dict.fromkeys(
                ("replica_id", "leader_id", "candidate_id", "broker_id", "voter_id"), sender
            )
            for place in places_of(key, version):
                for edge in edges_of(place.kind) if place.kind in BITS else ():
                    case = Case(key, version, (Mutation("edge", place.path, edge),), variant=variant)
                    with contextlib.suppress(*NO_REQUEST):
                        world = World(cluster_id=cluster_id)
                        values = values_of(world, key, version, variant=variant, tagged=case.tagged, more=who)
                        if "cluster_id" in values:
                            values["cluster_id"] = told
                        yield f"{case}, cluster id {told}, from {sender}", framed(request_of(world, case, values))


async def _afterwards(nodes: list[CostNode], key: ApiKey) -> str:
    """Return what is wrong with the quorum now, or after all nodes were started again."""
    for moment in ("then", "after all were started again"):
        try:
            await _made(nodes[0].port, f"{moment.split()[0]}-{key.name.lower()}")
        except (DeadNodeError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            epochs = [node.saved_numbers().get("leaderEpoch") for node in nodes]
            return f"no topic can be made {moment}: {error!r}; saved epochs {epochs}"
        if moment == "then":
            for node in nodes:
                await node.stop()
            try:
                await asyncio.gather(*(node.start() for node in nodes))
            except (DeadNodeError, TimeoutError) as error:
                return f"the nodes do not start again: {error!r}"
    return ""


async def _made(port: int, topic: str) -> None:
    """Make a topic on every node; raises TimeoutError when the cluster cannot."""
    wanted = {
        "name": topic,
        "num_partitions": 1,
        "replication_factor": NODES,
        "assignments": (),
        "configs": (),
    }
    async with asyncio.timeout(TOPIC_SECONDS):
        while True:
            try:
                wire = await Wire.open(port)
                values = {"topics": [wanted], "timeout": 5_000, "validate_only": False}
                answer = await wire.ask(ApiKey.CREATE_TOPICS, 5, values)
                await wire.close()
                if answer.topics[0].error_code in (0, 36):  # TOPIC_ALREADY_EXISTS
                    return
            except (OSError, asyncio.IncompleteReadError):
                pass
            await asyncio.sleep(0.2)
