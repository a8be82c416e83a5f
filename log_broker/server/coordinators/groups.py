"""
The asyncio driver of consumer groups: runs the effects of `core.group` on the partitions of `__consumer_offsets`.

A group belongs to the partition that its name hashes to, and to whoever leads that.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from log_broker.core.cluster.image import OFFSETS_TOPIC
from log_broker.core.groups import consumer_group_records
from log_broker.core.groups.consumer_assignors import ASSIGNORS
from log_broker.core.groups.consumer_events import ConsumerGroupSettings, ConsumerSupport
from log_broker.core.groups.group import Group, refusal
from log_broker.core.groups.protocol import Asked, Effect, Event, Persist, Persisted, Reply
from log_broker.core.groups.records import GroupKey, OffsetKey, decode_group, decode_key, decode_offset
from log_broker.core.partition.protocol import AppendResult
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.batch import NO_PRODUCER_ID, TRANSACTIONAL, BatchHeader
from log_broker.records.control import EndMarker
from log_broker.records.record import Record
from log_broker.server.coordinators.internal_topics import group_partition
from log_broker.server.coordinators.runtime import CoordinatorRuntime
from log_broker.server.coordinators.shards import Shard, ShardHost
from log_broker.server.coordinators.topic_patterns import match_names
from log_broker.server.partitions.internal_log import readable
from log_broker.server.process.log_limiter import RateLimitedLog

_log = logging.getLogger(__name__)

FATE_CHECK_S = 1.0  # of those who are not told that they coordinate no more

Answer = asyncio.Future[Any]
GroupShard = Shard[Group]


class GroupCoordinator:
    """All groups whose partition this node leads."""

    def __init__(self, node: ShardHost) -> None:
        self._node = node
        self._runtime: CoordinatorRuntime[Group] = CoordinatorRuntime(node, self, OFFSETS_TOPIC, group_partition)
        self._trouble = RateLimitedLog(_log, node.loop.time, logging.ERROR)
        # Asked of the runtime as they are.
        self.start = self._runtime.start
        self.stop = self._runtime.stop
        self.follow = self._runtime.shards.follow
        self.check = self._runtime.check
        self.find = self._runtime.find
        self.all = self._runtime.all

    # What the runtime asks.

    @property
    def expiry_interval_ms(self) -> int:
        return self._node.config.offsets_retention_check_interval_ms

    def replay(self, shard: GroupShard, header: BatchHeader, content: Record | EndMarker) -> None:
        if isinstance(content, EndMarker):
            self._decide(shard, header.producer_id, committed=content.committed)
        elif content.key is not None:
            producer_id = header.producer_id if header.attributes & TRANSACTIONAL else NO_PRODUCER_ID
            try:
                self._replay(shard, content.key, content.value, producer_id)
            except BrokerError as error:
                _log.error("%s-%d offset %d: %s", OFFSETS_TOPIC, shard.partition, content.offset, error)

    def replayed(self, shard: GroupShard) -> Iterator[None]:
        now_ms = self._node.clock_ms()
        for name, group in list(shard.items.items()):
            group.loaded(now_ms)
            if group.is_forgettable:
                del shard.items[name]
            yield

    def resume(self, group: Group) -> Sequence[Effect]:
        return ()

    def tick(self, group: Group, now_ms: int) -> Sequence[Effect]:
        return group.tick(now_ms)

    def expire(self, group: Group, now_ms: int) -> Sequence[Effect]:
        return group.expire_offsets(now_ms, retention_ms=self._node.config.offsets_retention_minutes * 60_000)

    def not_coordinator(self, event: Event) -> Any:
        return refusal(event, ErrorCode.NOT_COORDINATOR, "This is not the correct coordinator.")

    def settings_of(self, group_id: str) -> ConsumerGroupSettings:
        """Return what holds for a group of the new protocol now."""
        config = self._node.config
        own = self._node.cluster.group_overrides.get(group_id, {})
        policy = config.group_consumer_migration_policy
        return ConsumerGroupSettings(
            session_timeout_ms=int(own.get("consumer.session.timeout.ms", config.group_consumer_session_timeout_ms)),
            heartbeat_interval_ms=int(
                own.get("consumer.heartbeat.interval.ms", config.group_consumer_heartbeat_interval_ms)
            ),
            assignors=tuple(name for name in ASSIGNORS if name in config.group_consumer_assignors),
            members_max=config.group_consumer_max_size,
            classic_members_max=config.group_max_size,
            allows_upgrade=policy in {"upgrade", "bidirectional"},
            allows_downgrade=policy in {"downgrade", "bidirectional"},
        )

    # What handlers ask.

    def ask(self, group_id: str, event_of: Callable[[Answer], Asked], *, create: bool = False) -> Answer | None:
        """
        Hand an event to a group and return the answer to come, None when there is no such group.

        The caller has asked `check` before.
        """
        token: Answer = self._node.loop.create_future()
        return token if self.tell(group_id, event_of(token), create=create) else None

    def tell(self, group_id: str, event: Asked, *, create: bool = False) -> bool:
        """As `ask`, with an event that has its token; say whether there is such a group."""
        shard = self._runtime.shard_of(group_id)
        if shard is None or not (create or group_id in shard.items):
            return False
        self._runtime.ask(shard, self._touched(shard, group_id), event.token, event)
        return True

    def topic_deleted(self, topic: str) -> None:
        """Take away what groups have committed for a topic that is gone."""
        self._runtime.for_each(lambda group: group.forget_topic(topic))

    def transaction_ended(self, partition: int, producer_id: int, *, committed: bool) -> None:
        """Take note of a marker in a partition of the offsets topic."""
        shard = self._runtime.shards.replayed(partition)
        if shard is not None:
            for group in self._decide(shard, producer_id, committed=committed):
                self._runtime.run(shard, group, ())

    def _decide(self, shard: GroupShard, producer_id: int, *, committed: bool) -> list[Group]:
        """Apply or drop what a transaction has committed; return the groups that it did so for."""
        names = shard.held.pop(producer_id, ())
        groups = [group for name in names if (group := shard.items.get(name)) is not None]
        for group in groups:
            group.offsets.decide(producer_id, committed=committed)
        return groups

    # Running effects.

    def perform(self, shard: GroupShard, group: Group, effect: Effect) -> None:
        match effect:
            case Reply(token, value):
                shard.answer(token, value)
            case Persist() if effect.producer is not None:
                self._persist_transactional(shard, group, effect, *effect.producer)
            case Persist():
                self._persist(shard, group, effect)

    def settled(self, shard: GroupShard, group: Group) -> None:
        """Nothing waits for it."""

    def _persist(self, shard: GroupShard, group: Group, effect: Persist) -> None:
        """Append; the group hears of it later, also of what is refused at once."""

        def done(result: AppendResult) -> None:
            error = result.error
            if error is ErrorCode.NONE:
                self._persisted(shard, group, effect, error)
                return
            self._trouble.failed("group %s could not be stored: %s", group.group_id, result.message or error.name)
            if effect.is_step and error is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
                self._node.run(self._settle(shard, group, effect, shard.runtime.log_end_offset))
            else:
                self._node.loop.call_soon(self._persisted, shard, group, effect, error)

        if shard.may_append:
            shard.runtime.own_appends.begin(effect.records, done)
        else:
            self._node.loop.call_soon(self._persisted, shard, group, effect, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    async def _settle(self, shard: GroupShard, group: Group, effect: Persist, end_offset: int) -> None:
        self._persisted(shard, group, effect, await self._fate_of(shard, end_offset))

    async def _fate_of(self, shard: GroupShard, end_offset: int) -> ErrorCode:
        """Wait until what was appended below an offset is committed, or another leads and knows."""
        while shard.may_append:
            if shard.runtime.high_watermark >= end_offset:
                return ErrorCode.NONE
            with suppress(TimeoutError):
                async with asyncio.timeout(FATE_CHECK_S):
                    await readable(shard.runtime, end_offset - 1)
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _persist_transactional(
        self, shard: GroupShard, group: Group, effect: Persist, producer_id: int, producer_epoch: int
    ) -> None:
        """Append in a transaction; the group hears of it before it can hear of the marker behind it."""

        def done(result: AppendResult) -> None:
            self._persisted(shard, group, effect, result.error)

        if shard.may_append:
            shard.runtime.own_appends.transactional(effect.records, producer_id, producer_epoch, done)
        else:
            done(AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def _persisted(self, shard: GroupShard, group: Group, effect: Persist, error: ErrorCode) -> None:
        if effect.producer is not None and error is ErrorCode.NONE:
            shard.held.setdefault(effect.producer[0], set()).add(group.group_id)
        self._runtime.handle(shard, group, Persisted(number=effect.number, error=error))

    def _replay(self, shard: GroupShard, raw_key: bytes, value: bytes | None, producer_id: int) -> None:
        found = consumer_group_records.decode(raw_key, value)
        if found is not None:
            group_id, record = found
            self._touched(shard, group_id).replay(record)
            return
        key = decode_key(raw_key)
        if key is None:
            return
        group = self._touched(shard, key.group)
        match key:
            case OffsetKey():
                place = (key.topic, key.partition)
                if value is None:
                    group.offsets.remove([place])
                elif producer_id >= 0:
                    shard.held.setdefault(producer_id, set()).add(key.group)
                    group.offsets.hold(producer_id, {place: decode_offset(value)})
                else:
                    group.offsets.apply({place: decode_offset(value)})
            case GroupKey():
                if value is None:
                    group.classic.end()
                else:
                    group.classic.restore(decode_group(value), self._node.clock_ms())

    def _touched(self, shard: GroupShard, group_id: str) -> Group:
        group = shard.items.get(group_id)
        if group is None:
            group = shard.items[group_id] = self._new_group(group_id)
        return group

    def _new_group(self, group_id: str) -> Group:
        config = self._node.config
        support = ConsumerSupport(
            cluster=self._node.cluster,
            settings=lambda: self.settings_of(group_id),
            match_topics=match_names,
        )
        return Group(
            group_id,
            initial_delay_ms=config.group_initial_rebalance_delay_ms,
            members_max=config.group_max_size,
            support=support,
        )
