"""
Simulated producers: each record says who wrote it and which of its records it is, so that every fate can be told.

A record's value is `writer:number`; `number` counts from 0 in each partition. The producer repeats a batch until it is
acknowledged; only an idempotent one may do so without its record being there twice.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.record import build_batch
from log_broker.sim.checks.history import Written
from log_broker.sim.clients.client_link import Client, TopicPartition, produce_values
from log_broker.wire.apis import ApiKey

if TYPE_CHECKING:
    from log_broker.sim.world.cluster_world import ClusterWorld

WINDOW = 3
DAY_MS = 86_400_000
# By how much the times of a producer's records lie in the past; UNKNOWN: they have none.
NOW, OLD, UNKNOWN = 0, 2 * DAY_MS, -1
RECORDS_MAX = 3
NO_PRODUCER = (-1, -1)


class Sent:
    """One batch: its numbers, its sequence, and what became of it."""

    __slots__ = ("base_sequence", "count", "first", "is_done")

    def __init__(self, first: int, count: int, base_sequence: int) -> None:
        self.first = first
        self.count = count
        self.base_sequence = base_sequence
        self.is_done = False


class Producer(Client):
    """Writes to the partitions of one topic."""

    def __init__(
        self,
        world: "ClusterWorld",
        name: str,
        topic: str,
        *,
        acks: int,
        idempotent: bool,
        pace: float = 1.0,
        ages: Sequence[int] = (NOW,),
    ) -> None:
        """Rest `pace` times as long as others do between two batches; each of them has one of the ages."""
        super().__init__(world, name)
        self.topic = topic
        self.acks = acks
        self.idempotent = idempotent
        self.ages = ages
        self.pause_s = self.random.choice((0.1, 0.2, 0.4)) * pace
        if idempotent:
            world.history.idempotent.add(name)
        self._producer = NO_PRODUCER
        self._next_number: dict[int, int] = {}
        self._next_sequence: dict[int, int] = {}

    async def live(self) -> None:
        await self.refresh()
        partitions = self.world.partitions_of(self.topic)
        while not self.world.producers_stop:
            partition = self.random.randrange(partitions)
            if self.idempotent and self._producer == NO_PRODUCER:
                await self._become_idempotent()
            # A broker that knows nothing of a producer takes whatever comes first: nothing may overtake that.
            known = self.idempotent and self._next_number.get(partition, 0) > 0
            window = WINDOW if known and self.random.random() < 0.3 else 1
            await self._send(partition, [self._next(partition) for _ in range(window)])
            await self.rest(self.pause_s)

    async def _become_idempotent(self) -> None:
        values = {"transactional_id": None, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
        while self._producer == NO_PRODUCER:
            answer = await self.ask_any(ApiKey.INIT_PRODUCER_ID, 4, values)
            if answer.error_code == ErrorCode.NONE:
                self._producer = answer.producer_id, answer.producer_epoch
                self._next_sequence.clear()
            else:
                await self.rest(0.2)

    def _next(self, partition: int) -> Sent:
        first = self._next_number.get(partition, 0)
        sequence = self._next_sequence.get(partition, 0)
        sent = Sent(first, self.random.randint(1, RECORDS_MAX), sequence)
        self._next_number[partition] = first + sent.count
        self._next_sequence[partition] = sequence + sent.count
        return sent

    async def _send(self, partition: int, batches: list[Sent]) -> None:
        """Send until each is acknowledged; the later of a window are repeated behind the earlier."""
        place = (self.topic, partition)
        while left := [batch for batch in batches if not batch.is_done]:
            await asyncio.gather(*(self._send_once(place, batch) for batch in left))
            if any(not batch.is_done for batch in left):
                if not self.idempotent:
                    # It may be there: nobody knows, and saying it again under the same number would not help.
                    return
                await self.rest(0.1)

    async def _send_once(self, place: TopicPartition, sent: Sent) -> None:
        history = self.world.history
        records = Written(self.name, sent.first, sent.count)
        producer_id, epoch = self._producer
        age_ms = self.ages[sent.first % len(self.ages)]
        batch = build_batch(
            [
                (UNKNOWN if age_ms < 0 else self.world.wall_ms() - age_ms, None, f"{self.name}:{number}".encode(), ())
                for number in range(sent.first, sent.first + sent.count)
            ],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sent.base_sequence if self.idempotent else -1,
        )
        values = produce_values({place: bytes(batch)}, acks=self.acks, timeout_ms=int(self.seconds * 900))
        address = await self.leader(place)
        try:
            if self.acks == 0:
                await self.link(address).tell(ApiKey.PRODUCE, 9, values, timeout_seconds=self.seconds)
                sent.is_done = True
                history.acknowledged(place, records, acks=0, base_offset=-1)
                return
            answer = await self.ask_at(address, ApiKey.PRODUCE, 9, values)
        except BrokerError:
            self.forget_leader(place)
            return
        result = answer.responses[0].partition_responses[0]
        error = ErrorCode(result.error_code)
        if error is ErrorCode.NONE:
            sent.is_done = True
            self.say(f"{place[0]}-{place[1]} has {sent.first}+{sent.count} at {result.base_offset}")
            history.acknowledged(place, records, acks=self.acks, base_offset=result.base_offset)
        elif error in FATAL:
            history.refused(self.name, place, error)
            sent.is_done = True
        else:
            self.say(f"{place[0]}-{place[1]} {sent.first}+{sent.count}: {error.name}")
            self.forget_leader(place)


# What a producer that does all by the rules is never told.
FATAL = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
