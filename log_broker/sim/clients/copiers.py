"""
Simulated copiers: each takes what is committed in one partition, writes it elsewhere and commits how far it has got,
all in one transaction. Two share each transactional id, so that now and then one is the other's zombie.

A copy says which offset it is of: `copier:offset`. However often copiers fail, are fenced or give up, each offset is
there once among the committed copies.
"""

import contextlib
from typing import TYPE_CHECKING, Any

from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.batch import TRANSACTIONAL
from log_broker.records.record import build_batch
from log_broker.sim.clients.client_link import (
    GROUP_KEY,
    TRANSACTION_KEY,
    Client,
    TopicPartition,
    fetch_values,
    produce_values,
)
from log_broker.wire.apis import ApiKey

if TYPE_CHECKING:
    from log_broker.sim.world.cluster_world import ClusterWorld

TRANSACTION_TIMEOUT_MS = 8_000
COPIES_BYTES = 600
AGAIN = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
    }
)
HASTY = 0.15  # how many transactions are given up while their records are under way
PATIENCE = 30  # tries of one step before the copier begins again


class OverError(Exception):
    """This incarnation of the producer is at its end: fenced, or out of patience."""


class Copier(Client):
    """One of those that share a transactional id."""

    def __init__(self, world: "ClusterWorld", name: str, copies: str, source: TopicPartition, target: str) -> None:
        super().__init__(world, name)
        self.copies = copies  # the transactional id, the group, and what the copies call their writer
        self.source = source
        self.target = target
        self.transactions = 0
        self._producer = (-1, -1)
        self._sequences: dict[TopicPartition, int] = {}

    async def live(self) -> None:
        await self.refresh()
        while not self.world.copiers_stop:
            try:
                await self._begin()
                for _ in range(self.random.randint(1, 12)):
                    if self.world.copiers_stop:
                        break
                    await self._transaction()
                    await self.rest(0.4)
            except OverError as over:
                self.say(f"{self.copies}: {over}")
            await self.rest(1.5)

    async def _begin(self) -> None:
        values = {
            "transactional_id": self.copies,
            "transaction_timeout": TRANSACTION_TIMEOUT_MS,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        answer = await self._at_coordinator(TRANSACTION_KEY, ApiKey.INIT_PRODUCER_ID, 4, values, _plain_error)
        self._producer = answer.producer_id, answer.producer_epoch
        self._sequences.clear()
        self.say(f"{self.copies}: producer {self._producer}")

    async def _transaction(self) -> None:
        position = await self._position()
        offsets, next_offset = await self._read(position)
        if next_offset == position:
            return
        place = (self.target, self.random.randrange(self.world.partitions_of(self.target)))
        producer_id, epoch = self._producer
        values: dict[str, Any] = {
            "v3_and_below_transactional_id": self.copies,
            "v3_and_below_producer_id": producer_id,
            "v3_and_below_producer_epoch": epoch,
            "v3_and_below_topics": [{"name": place[0], "partitions": [place[1]]}],
        }
        await self._at_coordinator(TRANSACTION_KEY, ApiKey.ADD_PARTITIONS_TO_TXN, 3, values, _added_error)
        if offsets:
            if self.random.random() < HASTY:
                await self._leave_in_haste(place, offsets, next_offset)
            await self._produce(place, offsets)
        values = {
            "transactional_id": self.copies,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "group_id": self.copies,
        }
        await self._at_coordinator(TRANSACTION_KEY, ApiKey.ADD_OFFSETS_TO_TXN, 3, values, _plain_error)
        await self._commit_offset(next_offset)
        await self._end(next_offset, committed=self.random.random() < 0.8)

    async def _position(self) -> int:
        history = self.world.history
        known = history.commits.get((self.copies, self.source), 0)
        topics = [{"name": self.source[0], "partition_indexes": [self.source[1]]}]
        values = {"groups": [{"group_id": self.copies, "topics": topics}], "require_stable": True}
        answer = await self._at_coordinator(GROUP_KEY, ApiKey.OFFSET_FETCH, 8, values, _found_error)
        found: int = answer.groups[0].topics[0].partitions[0].committed_offset
        history.offset_found(self.name, self.copies, self.source, found, known)
        return max(found, 0)

    async def _read(self, position: int) -> tuple[list[int], int]:
        values = fetch_values(self.source, position, wait_ms=100, bytes_max=COPIES_BYTES, isolation_level=1)
        address = await self.leader(self.source)
        try:
            answer = await self.ask_at(address, ApiKey.FETCH, 12, values)
        except BrokerError:
            self.forget_leader(self.source)
            return [], position
        result = answer.responses[0].partitions[0]
        if result.error_code != ErrorCode.NONE:
            self.forget_leader(self.source)
            return [], position
        next_offset, handed = self.world.history.read(
            self.name,
            self.source,
            position,
            bytes(result.records or b""),
            isolation_level=1,
            aborted=[(each.producer_id, each.first_offset) for each in result.aborted_transactions or ()],
        )
        return [offset for offset, _ in handed], next_offset

    def _produced(self, place: TopicPartition, offsets: list[int]) -> dict[str, Any]:
        batch = build_batch(
            [(self.world.wall_ms(), None, f"{self.copies}:{offset}".encode(), ()) for offset in offsets],
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            base_sequence=self._sequences.get(place, 0),
            attributes=TRANSACTIONAL,
        )
        return produce_values(
            {place: bytes(batch)}, acks=-1, timeout_ms=int(self.seconds * 900), transactional_id=self.copies
        )

    async def _leave_in_haste(self, place: TopicPartition, offsets: list[int], next_offset: int) -> None:
        """
        Send the records, hardly wait for an answer, abort, and raise OverError.

        What was sent may still be under way when the transaction is over, and must not begin another then.
        """
        address = await self.leader(place)
        patience_s = self.random.uniform(0.0, 0.02)
        values = self._produced(place, offsets)
        with contextlib.suppress(BrokerError):
            await self.link(address).ask(ApiKey.PRODUCE, 9, values, timeout_seconds=patience_s)
        await self._end(next_offset, committed=False)
        raise OverError("left in haste")

    async def _produce(self, place: TopicPartition, offsets: list[int]) -> None:
        sequence = self._sequences.get(place, 0)
        values = self._produced(place, offsets)
        for _ in range(PATIENCE):
            address = await self.leader(place)
            try:
                answer = await self.ask_at(address, ApiKey.PRODUCE, 9, values)
            except BrokerError:
                self.forget_leader(place)
                continue
            error = ErrorCode(answer.responses[0].partition_responses[0].error_code)
            if error is ErrorCode.NONE:
                self._sequences[place] = sequence + len(offsets)
                return
            if error not in AGAIN:
                raise OverError(f"produce: {error.name}")
            self.forget_leader(place)
            await self.rest(0.1)
        raise OverError("produce: out of patience")

    async def _commit_offset(self, offset: int) -> None:
        self.world.history.offset_asked(self.copies, self.source, offset)
        entry = {
            "partition_index": self.source[1],
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": None,
        }
        values = {
            "transactional_id": self.copies,
            "group_id": self.copies,
            "producer_id": self._producer[0],
            "producer_epoch": self._producer[1],
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": self.source[0], "partitions": [entry]}],
        }
        await self._at_coordinator(GROUP_KEY, ApiKey.TXN_OFFSET_COMMIT, 3, values, _committed_error)

    async def _end(self, next_offset: int, *, committed: bool) -> None:
        values = {
            "transactional_id": self.copies,
            "producer_id": self._producer[0],
            "producer_epoch": self._producer[1],
            "committed": committed,
        }
        await self._at_coordinator(TRANSACTION_KEY, ApiKey.END_TXN, 3, values, _plain_error)
        self.say(f"{self.copies}: {'committed' if committed else 'aborted'} up to {next_offset}")
        if committed:
            self.transactions += 1
            self.world.history.offset_committed(self.copies, self.source, next_offset)

    async def _at_coordinator(self, kind: int, api: ApiKey, version: int, values: dict[str, Any], error_of: Any) -> Any:
        """Ask the coordinator until it answers; raises OverError."""
        for _ in range(PATIENCE):
            address = await self.coordinator(self.copies, kind)
            try:
                answer = await self.ask_at(address, api, version, values)
            except BrokerError:
                self.forget_coordinator(self.copies, kind)
                await self.rest(0.1)
                continue
            error = ErrorCode(error_of(answer))
            if error is ErrorCode.NONE:
                return answer
            if error not in AGAIN and error is not ErrorCode.UNSTABLE_OFFSET_COMMIT:
                raise OverError(f"{api.name}: {error.name}")
            if error is ErrorCode.NOT_COORDINATOR:
                self.forget_coordinator(self.copies, kind)
            await self.rest(0.1)
        raise OverError(f"{api.name}: out of patience")


def _plain_error(answer: Any) -> int:
    error: int = answer.error_code
    return error


def _added_error(answer: Any) -> int:
    error: int = answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
    return error


def _committed_error(answer: Any) -> int:
    error: int = answer.topics[0].partitions[0].error_code
    return error


def _found_error(answer: Any) -> int:
    error: int = answer.groups[0].error_code or answer.groups[0].topics[0].partitions[0].error_code
    return error
