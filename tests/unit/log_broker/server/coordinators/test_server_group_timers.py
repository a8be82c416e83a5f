"""The timers of groups on the event loop that is used, uvloop where there is one."""

import asyncio
from types import SimpleNamespace

from log_broker.config.broker import BrokerConfig
from log_broker.core.cluster.image import OFFSETS_TOPIC, ClusterImage
from log_broker.server.coordinators.groups import GroupCoordinator
from log_broker.server.coordinators.shards import Shard
from log_broker.server.process.event_loop import loop_factory


class Clockwork:
    """A group with a deadline and nothing else; it counts how often its time was up."""

    name = "g"
    is_forgettable = False

    def __init__(self) -> None:
        self.deadline_ms: int | None = 0
        self.ticks = 0
        self.ticked = asyncio.Event()

    def next_deadline_ms(self) -> int | None:
        return self.deadline_ms

    def tick(self, _now_ms: int) -> list[object]:
        self.ticks += 1
        self.ticked.set()
        self.deadline_ms = None
        return []


def test_a_deadline_that_has_passed_may_be_set_again_before_it_is_met(tmp_path) -> None:
    """uvloop makes a timer of no delay a plain handle, which does not tell when it is due."""
    group = Clockwork()

    async def twice() -> None:
        node = SimpleNamespace(
            loop=asyncio.get_running_loop(),
            clock_ms=lambda: 1000,
            config=BrokerConfig(data_dir=tmp_path),
            cluster=ClusterImage(topics={OFFSETS_TOPIC: SimpleNamespace(partitions=(None,))}),
        )
        coordinator = GroupCoordinator(node)
        shard = Shard(SimpleNamespace(partition=0), 0)
        shard.items["g"], shard.is_loaded = group, True
        coordinator._runtime.shards._shards[0] = shard
        coordinator._runtime.run(shard, group, [])
        coordinator._runtime.run(shard, group, [])
        await group.ticked.wait()
        coordinator.stop()

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(twice())
    assert group.ticks == 1
    assert group.deadline_ms is None
