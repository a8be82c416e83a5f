"""Failovers in virtual time: what the two profiles make of them, how soon all know, how long nobody can write."""

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from fluvial.cluster.profiles import PROFILES
from fluvial.testing import SimulatedCluster, simulate
from log_broker.core.cluster.image import ClusterImage, PartitionImage
from log_broker.core.raft.leader import Leader
from log_broker.core.raft.raft import Raft
from log_broker.records import batches_in

SESSION_SECONDS = 9.0  # broker.session.timeout.ms at its default
ELECTION_SECONDS = 5.0  # at the most, until another controller is at work when the one that is lost was the controller


def image(cluster: SimulatedCluster, broker: int) -> ClusterImage | None:
    """What a broker knows of the cluster; None while it does not run."""
    running = cluster._cluster.machines[broker].broker
    return None if running is None else running.cluster


def partition(cluster: SimulatedCluster, broker: int, topic: str) -> PartitionImage:
    known = image(cluster, broker)
    assert known is not None
    return known.topics[topic].partitions[0]


async def until(condition: Any, seconds: float = 120.0) -> float:
    """Wait for a condition; return after how many virtual seconds it came true."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not condition():
        assert loop.time() - began < seconds, "it did not come true"
        await asyncio.sleep(0.01)
    return loop.time() - began


async def send(cluster: SimulatedCluster, topic: str, values: list[bytes]) -> list[bytes]:
    """Send all with acks=all and little patience; return what was acknowledged."""
    producer = AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, acks="all", request_timeout_ms=4_000, retry_backoff_ms=1_000
    )
    await producer.start()
    sending = [await producer.send(topic, value, partition=0) for value in values]
    await asyncio.wait(sending, timeout=6)
    acknowledged = [value for value, sent in zip(values, sending, strict=True) if sent.done() and not sent.exception()]
    stopping = asyncio.ensure_future(producer.stop())
    await asyncio.wait([stopping], timeout=6)
    return acknowledged


async def read_all(cluster: SimulatedCluster, topic: str) -> list[bytes | None]:
    consumer = AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest")
    await consumer.start()
    place = TopicPartition(topic, 0)
    consumer.assign([place])
    end = (await consumer.end_offsets([place]))[place]
    found = [(await consumer.getone()).value for _ in range(end)]
    await consumer.stop()
    return found


@pytest.mark.parametrize("name", PROFILES)
def test_without_a_copy_in_sync_one_profile_waits_and_the_other_goes_on(name: str) -> None:
    """Two of three copies die, ten records come to the last, which dies as well; a stale one is back first."""
    profile = PROFILES[name]

    async def scenario(cluster: SimulatedCluster) -> tuple[int, int]:
        topic = await cluster.create_topic(
            "t", partitions=1, replication_factor=profile.replication_factor, config=profile.settings
        )
        last = await cluster.leader_of(topic)
        told = await send(cluster, topic, [b"common %d" % at for at in range(10)])
        others = [broker for broker in partition(cluster, last, topic).replicas if broker != last]
        for broker in others:
            cluster.kill(broker)
            await until(lambda broker=broker: broker not in partition(cluster, last, topic).isr)
        sent = [b"alone %d" % at for at in range(10)]
        told += await send(cluster, topic, sent)
        cluster.kill(last)
        cluster.start(others[0])
        await asyncio.sleep(ELECTION_SECONDS)
        late = [b"late %d" % at for at in range(3)]
        told += await send(cluster, topic, late)
        cluster.heal()
        await until(lambda: image(cluster, last) is not None)
        await until(lambda: len(partition(cluster, last, topic).isr) == profile.replication_factor)
        found = await read_all(cluster, topic)
        return 23 - len(told), len(set(told) - set(found))

    refused, lost = simulate(scenario, brokers=5)
    assert (refused > 0, lost > 0) == {"durable": (True, False), "available": (False, True)}[name]
    assert lost in {0, 10}, "of what was acknowledged only what the last copy alone had"


@pytest.mark.parametrize(
    ("fault", "bound_seconds"), [("kill", ELECTION_SECONDS), ("isolate", SESSION_SECONDS + ELECTION_SECONDS)]
)
def test_a_lost_broker_is_known_and_every_partition_writable_within_a_bound(fault: str, bound_seconds: float) -> None:
    """A process that ends is noticed at once, one that cannot be reached when its session is over."""

    async def scenario(cluster: SimulatedCluster) -> tuple[float, float]:
        topic = await cluster.create_topic("t", partitions=6)
        victim = await cluster.leader_of(topic)
        others = [broker for broker in cluster.brokers if broker != victim]
        producer = AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, acks="all", request_timeout_ms=60_000, retry_backoff_ms=50
        )
        await producer.start()
        await asyncio.gather(*(producer.send_and_wait(topic, b"before", partition=at) for at in range(6)))
        loop = asyncio.get_running_loop()
        began = loop.time()
        if fault == "kill":
            cluster.kill(victim)
        else:
            cluster.fault("isolate", victim, amount=0.1)

        def all_know() -> bool:
            images = [image(cluster, broker) for broker in others]
            return all(known is not None and not known.is_alive(victim) for known in images)

        known_after = await until(all_know)
        await until(lambda: all(each.leader in others for each in _partitions(cluster, others[0], topic)))
        led_after = loop.time() - began
        cluster.heal()
        await asyncio.gather(*(producer.send_and_wait(topic, b"after", partition=at) for at in range(6)))
        await producer.stop()
        return known_after, led_after

    known_after, led_after = simulate(scenario)
    assert known_after <= bound_seconds
    assert known_after <= led_after <= bound_seconds + 0.1


@pytest.mark.parametrize("seed", range(2))
def test_a_leader_with_a_full_disk_is_followed_by_one_that_has_room_and_leads_again(seed: int) -> None:
    async def scenario(cluster: SimulatedCluster) -> int:
        topic = await cluster.create_topic("t", partitions=3)
        alone = await cluster.create_topic("alone", partitions=3, replication_factor=1)
        victim = await cluster.leader_of(topic)
        producer = AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, acks="all", request_timeout_ms=60_000, retry_backoff_ms=50
        )
        await producer.start()
        await asyncio.gather(*(producer.send_and_wait(topic, b"before", partition=at) for at in range(3)))
        others = [broker for broker in cluster.brokers if broker != victim]
        end = cluster.fault("fill disk", victim)
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(20):
            await asyncio.gather(*(producer.send_and_wait(topic, b"meanwhile", partition=at) for at in range(3)))
        passed = loop.time() - began
        # One that was the controller as well may not learn whom to tell: it cannot store the new epoch.
        assert passed < SESSION_SECONDS + ELECTION_SECONDS, f"{passed} s: it is not waited for"
        known = _partitions(cluster, others[0], topic)
        assert all(each.leader in others and victim not in each.isr for each in known)
        assert any(each.leader == victim for each in _partitions(cluster, others[0], alone)), "nobody else has that"
        end()
        await until(lambda: all(victim in each.isr for each in _partitions(cluster, others[0], topic)))
        await until(lambda: any(each.leader == victim for each in _partitions(cluster, others[0], topic)))
        await producer.stop()
        found = await read_all(cluster, topic)
        assert found == [b"before"] + [b"meanwhile"] * 20
        return len(found)

    assert simulate(scenario, seed=seed, config={"leader.imbalance.check.interval.seconds": "10"}) == 21


def _lease_outlasts_session(seed: int) -> bool:
    """Whether a controller that is cut off holds a lease when its successor fences it; it hears itself all the time."""

    async def scenario(cluster: SimulatedCluster) -> bool:
        await cluster.create_topic("t", partitions=3)
        nodes = {broker: cluster._cluster.machines[broker].broker for broker in cluster.brokers}
        victim = next(broker for broker, node in nodes.items() if node is not None and node.is_controller)
        others = [broker for broker in cluster.brokers if broker != victim]
        cluster.fault("isolate", victim, amount=0.1)

        def is_fenced() -> bool:
            images = [image(cluster, broker) for broker in others]
            return any(known is not None and not known.is_alive(victim) for known in images)

        await until(is_fenced)
        return nodes[victim].lease.valid  # type: ignore[union-attr]

    quick_sessions = {"broker.session.timeout.ms": "3000", "controller.quorum.fetch.timeout.ms": "6000"}
    return simulate(scenario, seed=seed, config=quick_sessions)


def test_a_controller_that_is_cut_off_holds_no_lease_when_its_successor_fences_it() -> None:
    assert not any(map(_lease_outlasts_session, range(2)))


def test_a_controller_that_goes_on_when_it_is_cut_off_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here and not among the mutations of seeds, whose sessions last longer than such a controller does."""
    monkeypatch.setattr(Raft, "surely_leads", lambda self, now_ms: isinstance(self.role, Leader))
    assert _lease_outlasts_session(0)


def _partitions(cluster: SimulatedCluster, broker: int, topic: str) -> tuple[PartitionImage, ...]:
    known = image(cluster, broker)
    assert known is not None
    return known.topics[topic].partitions


@pytest.mark.parametrize("linger_ms", [0, 50])
def test_a_batch_waits_for_as_long_as_its_producer_says_and_no_longer(linger_ms: int) -> None:
    """A record every 7 ms: what each waits for its answer, and how many there are to a batch."""

    async def scenario(cluster: SimulatedCluster) -> tuple[float, int]:
        topic = await cluster.create_topic("t")
        producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=linger_ms)
        await producer.start()
        await producer.send_and_wait(topic, b"first")
        loop = asyncio.get_running_loop()
        waited = []

        async def send() -> int:
            began = loop.time()
            told = await producer.send_and_wait(topic, b"x")
            waited.append(loop.time() - began)
            return told.offset

        tasks = []
        for _ in range(60):
            tasks.append(asyncio.ensure_future(send()))
            await asyncio.sleep(0.007)
        assert sorted(await asyncio.gather(*tasks)) == list(range(1, 61))
        await producer.stop()
        runtime = cluster._cluster.machines[0].broker.logs.get(topic, 0)  # type: ignore[union-attr]
        assert runtime is not None
        batches = sum(1 for chunk in runtime.read(0, 1 << 20).chunks for _ in batches_in(chunk)) - 1
        return max(waited), batches

    longest, batches = simulate(scenario, brokers=1)
    assert longest < linger_ms / 1000 + 0.030, "the bound, and the way there and back"
    assert (batches <= 10) == (linger_ms == 50)
