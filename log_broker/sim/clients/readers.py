"""Simulated readers: each follows all partitions of a topic from the start and never goes back."""

from typing import TYPE_CHECKING

from log_broker.errors import BrokerError, ErrorCode
from log_broker.sim.checks.history import RecordId
from log_broker.sim.clients.client_link import Client, TopicPartition, fetch_values
from log_broker.sim.kernel.kernel import InvariantError
from log_broker.wire.apis import ApiKey

if TYPE_CHECKING:
    from log_broker.sim.world.cluster_world import ClusterWorld

WAIT_MS = 100
FETCH_BYTES = 2_000


class Reader(Client):
    """Reads one topic, committed records only or all."""

    def __init__(
        self, world: "ClusterWorld", name: str, topic: str, *, isolation_level: int, pause_s: float = 0.1
    ) -> None:
        super().__init__(world, name)
        self.pause_s = pause_s
        self.topic = topic
        self.isolation_level = isolation_level
        self.positions: dict[int, int] = {}
        self.records: list[RecordId] = []
        self.epochs: dict[int, int] = {}

    async def live(self) -> None:
        await self.refresh()
        self.positions = dict.fromkeys(range(self.world.partitions_of(self.topic)), 0)
        while not self.world.readers_stop:
            for partition in self.positions:
                await self._read((self.topic, partition))
            await self.rest(self.pause_s)

    async def _read(self, place: TopicPartition) -> None:
        offset = self.positions[place[1]]
        values = fetch_values(
            place, offset, wait_ms=WAIT_MS, bytes_max=FETCH_BYTES, isolation_level=self.isolation_level
        )
        address = await self.leader(place)
        try:
            answer = await self.ask_at(address, ApiKey.FETCH, 12, values)
        except BrokerError:
            self.forget_leader(place)
            return
        result = answer.responses[0].partitions[0]
        error = ErrorCode(result.error_code)
        if error is ErrorCode.OFFSET_OUT_OF_RANGE:
            # A leader that is behind may say so of what another one served; one that lacks it may not.
            self.forget_leader(place)
            if self.world.history.log(place).end_offset < offset and self.world.history.log(place).cut_epoch < 0:
                raise InvariantError("readers are never ahead", f"{self.name} is at {offset} of {place}")
            self.positions[place[1]] = min(offset, self.world.history.log(place).end_offset)
            return
        if error is not ErrorCode.NONE:
            self.forget_leader(place)
            return
        if result.records:
            self.positions[place[1]], handed = self.world.history.read(
                self.name,
                place,
                offset,
                bytes(result.records),
                isolation_level=self.isolation_level,
                aborted=[(each.producer_id, each.first_offset) for each in result.aborted_transactions or ()],
            )
            self.records += [identity for _, identity in handed]
