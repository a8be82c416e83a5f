"""
The asyncio driver of consumer groups: runs the effects of `core.group` on the partitions of `__consumer_offsets`.

A group belongs to the partition that its name hashes to, and to whoever leads that.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from log_broker.core import consumer_group_records
from log_broker.core.cluster import OFFSETS_TOPIC
from log_broker.core.consumer_assignors import ASSIGNORS
from log_broker.core.consumer_events import ConsumerGroupSettings
from log_broker.core.group import Group
from log_broker.core.group_kinds import ConsumerSupport
from log_broker.core.group_protocol import Effect, Event, Persist, Persisted, Reply
from log_broker.core.group_records import GroupKey, OffsetKey, decode_group, decode_key, decode_offset
from log_broker.core.partition_protocol import AppendResult
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.batch import NO_PRODUCER_ID, TRANSACTIONAL
from log_broker.records.control import EndMarker
from log_broker.server.deadlines import Deadlines
from log_broker.server.internal_log import stored_entries
from log_broker.server.partition import PartitionRuntime
from log_broker.server.topic_patterns import match_topics

if TYPE_CHECKING:
    from log_broker.server.node import Node

_log = logging.getLogger(__name__)

T = TypeVar("T")
Token = asyncio.Future[Any]


class GroupCoordinator:
    """All groups whose partition this node leads."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._groups: dict[str, Group] = {}
        self._loaded: set[int] = set()
        self._deadlines = Deadlines(node, self._time_is_up)
        self._expiration: asyncio.TimerHandle | None = None

    def start(self) -> None:
        seconds = self._node.config.offsets_retention_check_interval_ms / 1000
        self._expiration = self._node.loop.call_later(seconds, self._expire)

    def stop(self) -> None:
        self._deadlines.drop_all()
        if self._expiration is not None:
            self._expiration.cancel()

    def load(self, runtime: PartitionRuntime) -> None:
        """Take over a partition that this node leads now; what cannot be read is said in the log and left out."""
        if runtime.partition in self._loaded:
            return
        now_ms = self._node.clock_ms()
        touched: dict[str, Group] = {}
        for header, content in stored_entries(runtime):
            if isinstance(content, EndMarker):
                for group in touched.values():
                    group.offsets.decide(header.producer_id, committed=content.committed)
                continue
            record = content
            if record.key is None:
                continue
            producer_id = header.producer_id if header.attributes & TRANSACTIONAL else NO_PRODUCER_ID
            try:
                self._replay(record.key, record.value, touched, now_ms, producer_id)
            except BrokerError as error:
                _log.error("%s-%d offset %d: %s", runtime.topic, runtime.partition, record.offset, error)
        for group in touched.values():
            group.loaded(now_ms)
        self._groups.update((name, group) for name, group in touched.items() if not group.is_forgettable)
        self._loaded.add(runtime.partition)
        for name in touched:
            self._set_timer(name)

    def unload_all(self) -> None:
        """Forget everything: the offsets topic was deleted."""
        self.stop()
        self._groups.clear()
        self._loaded.clear()

    def check(self, group_id: str) -> ErrorCode:
        """Say whether this node coordinates the group, and if not, why not."""
        partition = self._node.group_partition(group_id)
        return self._node.coordination_error(OFFSETS_TOPIC, partition, self._loaded)

    def find(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def all(self) -> Iterable[Group]:
        return self._groups.values()

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

    def topic_deleted(self, topic: str) -> None:
        """Take away what groups have committed for a topic that is gone."""
        for group in list(self._groups.values()):
            self._run(group, group.forget_topic(topic))

    def ask(self, group_id: str, event_of: Callable[[Token], Event], *, create: bool = False) -> Token | None:
        """
        Hand an event to a group and return the answer to come, None when there is no such group.

        The caller has asked `check` before.
        """
        group = self._groups.get(group_id)
        if group is None:
            if not create:
                return None
            group = self._groups[group_id] = self._new_group(group_id)
        token: Token = self._node.loop.create_future()
        self._run(group, group.handle(event_of(token), self._node.clock_ms()))
        return token

    def _run(self, group: Group, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Reply(token, answer):
                    if not token.done():
                        token.set_result(answer)
                case Persist() if effect.producer is not None:
                    self._persist_transactional(group, effect, *effect.producer)
                case Persist():
                    self._node.run(self._persist(group, effect))
        if group.is_forgettable:
            if self._groups.get(group.group_id) is group:
                del self._groups[group.group_id]
            return
        self._set_timer(group.group_id)

    async def _persist(self, group: Group, effect: Persist) -> None:
        error = ErrorCode.NONE
        partition = self._node.group_partition(group.group_id)
        runtime = None if partition is None else self._node.logs.get(OFFSETS_TOPIC, partition)
        if runtime is None:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            try:
                await runtime.append_records(effect.records)
            except BrokerError as failure:
                _log.error("group %s could not be stored: %s", group.group_id, failure)
                error = failure.code
        self._run(group, group.handle(Persisted(number=effect.number, error=error), self._node.clock_ms()))

    def _persist_transactional(self, group: Group, effect: Persist, producer_id: int, producer_epoch: int) -> None:
        """Append in a transaction; the group hears of it before it can hear of the marker behind it."""

        def done(result: AppendResult) -> None:
            self._run(group, group.handle(Persisted(number=effect.number, error=result.error), self._node.clock_ms()))

        partition = self._node.group_partition(group.group_id)
        runtime = None if partition is None else self._node.logs.get(OFFSETS_TOPIC, partition)
        if runtime is None:
            done(AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        else:
            runtime.append_transactional(effect.records, producer_id, producer_epoch, done)

    def transaction_ended(self, partition: int, producer_id: int, *, committed: bool) -> None:
        """Take note of a marker in a partition of the offsets topic."""
        for group in list(self._groups.values()):
            if self._node.group_partition(group.group_id) == partition:
                group.offsets.decide(producer_id, committed=committed)
                self._run(group, ())

    def _set_timer(self, group_id: str) -> None:
        """See that the group's next deadline is met."""
        group = self._groups.get(group_id)
        deadline = None if group is None else group.next_deadline_ms()
        if deadline is None:
            self._deadlines.drop(group_id)
        else:
            self._deadlines.meet(group_id, deadline)

    def _time_is_up(self, group_id: str) -> None:
        group = self._groups.get(group_id)
        if group is not None:
            self._run(group, group.tick(self._node.clock_ms()))

    def _expire(self) -> None:
        retention_ms = self._node.config.offsets_retention_minutes * 60_000
        for group in list(self._groups.values()):
            self._run(group, group.expire_offsets(self._node.clock_ms(), retention_ms=retention_ms))
        self.start()

    def _replay(
        self, raw_key: bytes, value: bytes | None, touched: dict[str, Group], now_ms: int, producer_id: int
    ) -> None:
        found = consumer_group_records.decode(raw_key, value)
        if found is not None:
            group_id, record = found
            self._touched(group_id, touched).replay_consumer(record)
            return
        key = decode_key(raw_key)
        if key is None:
            return
        group = self._touched(key.group, touched)
        match key:
            case OffsetKey():
                place = (key.topic, key.partition)
                if value is None:
                    group.offsets.remove([place])
                elif producer_id >= 0:
                    group.offsets.hold(producer_id, {place: decode_offset(value)})
                else:
                    group.offsets.apply({place: decode_offset(value)})
            case GroupKey():
                if value is None:
                    group.end()
                else:
                    group.restore(decode_group(value), now_ms)

    def _touched(self, group_id: str, touched: dict[str, Group]) -> Group:
        group = touched.get(group_id)
        if group is None:
            group = touched[group_id] = self._new_group(group_id)
        return group

    def _new_group(self, group_id: str) -> Group:
        config = self._node.config
        support = ConsumerSupport(
            cluster=self._node.cluster,
            settings=lambda: self.settings_of(group_id),
            match_topics=match_topics,
        )
        return Group(
            group_id,
            initial_delay_ms=config.group_initial_rebalance_delay_ms,
            members_max=config.group_max_size,
            support=support,
        )


def partition_of(group_id: str, count: int) -> int:
    """Return the partition of `__consumer_offsets` that a group belongs to: Java's String.hashCode without its sign."""
    code = 0
    for unit in _utf16_units(group_id):
        code = (31 * code + unit) & 0xFFFFFFFF
    return (code & 0x7FFFFFFF) % count


def _utf16_units(text: str) -> Iterator[int]:
    raw = text.encode("utf-16-be", "surrogatepass")
    return (int.from_bytes(raw[at : at + 2], "big") for at in range(0, len(raw), 2))
