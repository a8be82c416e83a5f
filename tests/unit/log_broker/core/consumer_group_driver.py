"""Runs a group of either kind as a broker would: with a log, topics, a clock, and clients that keep the protocol."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from log_broker.core.cluster.image import ClusterImage
from log_broker.core.cluster.records import PartitionsAdded, TopicCreated, TopicDeleted
from log_broker.core.groups.consumer_events import (
    ConsumerGroupSettings,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    ConsumerSupport,
)
from log_broker.core.groups.consumer_group import ConsumerGroup
from log_broker.core.groups.consumer_group_records import NO_PARTITIONS, TopicIdPartitions, decode
from log_broker.core.groups.group import Group
from log_broker.core.groups.protocol import Persist, Persisted, Reply
from log_broker.core.groups.records import GroupKey, OffsetKey, decode_group, decode_key, decode_offset
from log_broker.errors import ErrorCode
from log_broker.server.coordinators.topic_patterns import match_names

REBALANCE_MS = 60_000


class GroupDriver:
    """One group, its log and the cluster around it."""

    def __init__(self, **settings: Any) -> None:
        self.cluster = ClusterImage()
        self.settings = ConsumerGroupSettings(**settings)
        self.group = self._new_group()
        self.now = 1_000
        self.log: list[tuple[bytes, bytes | None]] = []
        self.answers: dict[Any, Any] = {}
        self.held: list[Persist] | None = None
        self.fails = False
        self._tokens = itertools.count()
        self._topic_ids = itertools.count(1)

    def _new_group(self) -> Group:
        support = ConsumerSupport(cluster=self.cluster, settings=lambda: self.settings, match_topics=match_names)
        return Group("g", support=support)

    @property
    def consumer(self) -> ConsumerGroup:
        assert self.group.consumer is not None
        return self.group.consumer

    def create_topic(self, name: str, partitions: int) -> str:
        topic_id = f"{next(self._topic_ids):032x}"
        self.cluster.replay(TopicCreated(name=name, topic_id=topic_id, replicas=((0,),) * partitions))
        return topic_id

    def add_partitions(self, name: str, count: int) -> None:
        self.cluster.replay(PartitionsAdded(topic_id=self.cluster.topics[name].topic_id, replicas=((0,),) * count))

    def delete_topic(self, name: str) -> None:
        self.cluster.replay(TopicDeleted(topic_id=self.cluster.topics[name].topic_id))

    def places(self, *topics: str) -> TopicIdPartitions:
        return frozenset(
            (self.cluster.topics[name].topic_id, number)
            for name in topics
            for number in range(len(self.cluster.topics[name].partitions))
        )

    def send(self, event_type: type[Any], **fields: Any) -> Any:
        """Hand an event in and return the token that its answer will have."""
        token = next(self._tokens)
        self.run(self.group.handle(event_type(token=token, **fields), self.now))
        return token

    def ask(self, event_type: type[Any], **fields: Any) -> Any:
        """Hand an event in and return its answer."""
        return self.answers[self.send(event_type, **fields)]

    def run(self, effects: Sequence[Any]) -> None:
        for effect in effects:
            match effect:
                case Reply(token, answer):
                    assert token not in self.answers, "an event is answered once"
                    self.answers[token] = answer
                case Persist():
                    if self.held is None:
                        self.persist(effect)
                    else:
                        self.held.append(effect)

    def persist(self, effect: Persist) -> None:
        error = ErrorCode.KAFKA_STORAGE_ERROR if self.fails else ErrorCode.NONE
        if not self.fails:
            self.log.extend(effect.records)
        self.run(self.group.handle(Persisted(number=effect.number, error=error), self.now))

    def release(self) -> None:
        """Let what was held be durable, in order."""
        held, self.held = self.held or [], None
        for effect in held:
            self.persist(effect)

    def advance(self, milliseconds: int) -> None:
        """Let time pass, with every deadline met on the way."""
        end = self.now + milliseconds
        while (deadline := self.group.next_deadline_ms()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.run(self.group.tick(self.now))
        self.now = end

    def restart(self) -> None:
        """Begin again from the log, as a coordinator that takes the partition over."""
        self.held = None
        self.group = load_group(self.log, self._new_group(), self.now)


def load_group(log: Sequence[tuple[bytes, bytes | None]], group: Group, now_ms: int) -> Group:
    for key, value in log:
        found = decode(key, value)
        if found is not None:
            group.replay(found[1])
            continue
        match decode_key(key):
            case OffsetKey(topic=topic, partition=partition):
                if value is None:
                    group.offsets.remove([(topic, partition)])
                else:
                    group.offsets.apply({(topic, partition): decode_offset(value)})
            case GroupKey():
                if value is None:
                    group.classic.end()
                else:
                    group.classic.restore(decode_group(value), now_ms)
    group.loaded(now_ms)
    return group


@dataclass
class Client:
    """A client of the new protocol that gives up at once what it is told to, and says so in its next heartbeat."""

    driver: GroupDriver
    member_id: str
    topics: frozenset[str]
    instance_id: str | None = None
    regex: str | None = None
    may_describe: Callable[[str], bool] | None = None
    assignor: str | None = None
    rebalance_timeout_ms: int = REBALANCE_MS
    epoch: int = 0
    owned: TopicIdPartitions = NO_PARTITIONS
    is_unsure: bool = False  # an answer was lost or an error: the next request says everything again

    def send(self, **changes: Any) -> Any:
        whole = self.epoch == 0 or self.is_unsure
        fields = {
            "member_id": self.member_id,
            "fresh_id": "fresh",
            "member_epoch": self.epoch,
            "instance_id": self.instance_id,
            "rebalance_timeout_ms": self.rebalance_timeout_ms if whole else -1,
            "topics": self.topics if whole else None,
            "regex": self.regex if whole else None,
            "may_describe": self.may_describe,
            "assignor": self.assignor if whole else None,
            "owned": self.owned,
            **changes,
        }
        return self.driver.send(ConsumerHeartbeat, **fields)

    def beat(self, **changes: Any) -> ConsumerHeartbeatAnswer:
        """Send a heartbeat and do as the answer says."""
        answer: ConsumerHeartbeatAnswer = self.driver.answers[self.send(**changes)]
        self.take(answer)
        return answer

    def take(self, answer: ConsumerHeartbeatAnswer) -> None:
        self.is_unsure = answer.error is not ErrorCode.NONE
        if answer.error in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND}:
            self.epoch = 0
            self.owned = NO_PARTITIONS
        elif answer.error is ErrorCode.NONE:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.owned = answer.assignment

    def leave(self, epoch: int = -1) -> ConsumerHeartbeatAnswer:
        self.owned = NO_PARTITIONS
        answer = self.beat(member_epoch=epoch, rebalance_timeout_ms=-1, topics=None, owned=None)
        self.epoch = 0
        return answer


def settle(clients: Sequence[Client], rounds: int = 12) -> None:
    """Let everyone be heard of until nothing moves any more."""
    for _ in range(rounds):
        for client in clients:
            client.beat()
