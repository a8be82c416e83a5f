"""The benchmark of large clusters, with a small one: every broker joins, hears of a new leader and comes back."""

import asyncio

from log_broker.core.cluster.image import NO_LEADER
from tests.bench.metadata.__main__ import measure
from tests.bench.metadata.crowd import controller, crowd

COUNT = 20


def test_every_broker_joins_and_replays_a_change_of_leaders() -> None:
    async def live() -> None:
        with controller() as node:
            async with crowd(COUNT, node) as brokers:
                await brokers.join()
                await brokers.create_topics(2 * COUNT)
                await brokers.settle()
                assert len(brokers.image.alive_brokers()) == COUNT
                victim = brokers.brokers[0]
                led = [(topic.name, at) for topic, at, _ in brokers.image.led_by(victim.node_id)]
                assert led
                answered, arrivals = await brokers.fence(victim)
                assert answered > 0
                assert len(arrivals) == COUNT
                leaders = {brokers.image.topics[name].partitions[at].leader for name, at in led}
                assert not leaders & {victim.node_id, NO_LEADER}
                await brokers.settle()
                assert brokers.image.may_lead(victim.node_id)

    asyncio.run(live())


def test_every_figure_is_told() -> None:
    found = asyncio.run(measure(3, changes=1, rest_seconds=0.1))
    assert {figure.choice for figure in found} == {"3 brokers"}
    assert len({figure.what for figure in found}) == len(found) == 11
    assert all(figure.value >= 0 for figure in found)


def test_brokers_are_fenced_at_once_and_each_of_their_partitions_has_another_leader() -> None:
    async def live() -> None:
        with controller() as node:
            async with crowd(COUNT, node) as brokers:
                await brokers.join()
                await brokers.create_topics(2 * COUNT)
                await brokers.settle()
                victims = brokers.brokers[::7]  # no partition has all its copies on these
                answered, arrivals = await brokers.fence(*victims)
                assert answered > 0
                assert len(arrivals) == 3 * COUNT
                for victim in victims:
                    assert not list(brokers.image.led_by(victim.node_id))

    asyncio.run(live())


def test_what_is_asked_at_once_is_told_beside_the_rest() -> None:
    found = asyncio.run(measure(4, changes=1, rest_seconds=0.1, together=2, partitions=3))
    told = {figure.what: figure.value for figure in found}
    assert len(told) == 13
    assert told["CPU ms a change, 2 at once"] >= 0
    assert told["ms to 100% of all"] > 0
