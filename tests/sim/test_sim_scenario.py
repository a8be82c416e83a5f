"""Users' own code against a simulated cluster, with a stock client: the same faults, the same run for a seed."""

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from fluvial.testing import ScenarioError, SimulatedCluster, simulate


async def _copy_numbers(cluster: SimulatedCluster) -> tuple[list[int], float]:
    """Send numbers and read them back; return them and when that was done."""
    await cluster.create_topic("numbers", partitions=2)
    producer = AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, enable_idempotence=True, request_timeout_ms=20_000
    )
    await producer.start()
    try:
        for number in range(30):
            await producer.send_and_wait("numbers", str(number).encode(), partition=number % 2)
            await asyncio.sleep(0.1)
    finally:
        await producer.stop()
    consumer = AIOKafkaConsumer(
        "numbers", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest", request_timeout_ms=2_000
    )
    await consumer.start()
    try:
        found = [int((await consumer.getone()).value or b"") for _ in range(30)]
        return sorted(found), asyncio.get_running_loop().time()
    finally:
        await consumer.stop()


@pytest.mark.parametrize("seed", range(3))
def test_a_scenario_is_the_same_whenever_its_seed_is(seed: int) -> None:
    faults = ("kill", "cut power", "isolate", "storm")
    first = simulate(_copy_numbers, seed=seed, faults=faults, faults_seconds=4)
    assert first[0] == list(range(30))
    assert simulate(_copy_numbers, seed=seed, faults=faults, faults_seconds=4) == first


def test_a_scenario_brings_faults_about_itself() -> None:
    async def scenario(cluster: SimulatedCluster) -> int:
        await cluster.create_topic("numbers")
        leader = await cluster.leader_of("numbers")
        producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, request_timeout_ms=20_000)
        await producer.start()
        try:
            end = cluster.fault("isolate", leader)
            cluster.kill(leader)
            end()
            cluster.heal()
            return int((await producer.send_and_wait("numbers", b"1")).offset)
        finally:
            await producer.stop()

    assert simulate(scenario) == 0


def test_what_a_scenario_raises_comes_with_its_story() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        cluster.say("looking for it")
        raise LookupError("not there")

    with pytest.raises(LookupError, match="not there") as caught:
        simulate(scenario, seed=5)
    told = "".join(caught.value.__notes__)
    assert "seed 5" in told
    assert "looking for it" in told


def test_a_scenario_that_does_not_end_has_failed() -> None:
    with pytest.raises(ScenarioError, match="has not ended after 20 s"):
        simulate(lambda _: asyncio.sleep(3600), seconds_max=20)


def test_only_faults_that_there_are_can_be_asked_for() -> None:
    with pytest.raises(ValueError, match="no such faults: earthquake"):
        simulate(_copy_numbers, faults=["earthquake"])
