"""
The active controller: made when this node begins to lead the metadata quorum, dropped when that ends.

It decides by the functions of the core and has `authority` commit what they return. What it knows beside the image is
who was heard of when; that dies with it, and the next controller starts everybody's session again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from log_broker.core.cluster import elections
from log_broker.core.cluster.broker_registry import (
    BrokerRegistry,
    Heartbeat,
    HeartbeatAnswer,
    Registration,
    check_broker_epoch,
)
from log_broker.core.cluster.events import Fencing
from log_broker.core.cluster.feature_updates import first_levels
from log_broker.core.cluster.features import METADATA_VERSION, USERS_FROM
from log_broker.core.cluster.image import ClusterImage, PartitionImage
from log_broker.core.cluster.isr_changes import IsrWish, alter_partition, without_unable
from log_broker.core.cluster.reassignments import reassign
from log_broker.core.cluster.records import (
    ClusterNamed,
    MetadataRecord,
    PartitionChanged,
    UserScramCredentialRecord,
)
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.process.ports import Cluster, HasCounters, HasFeatures, Process
from log_broker.server.process.turns import in_turns
from log_broker.server.quorum.founding import fresh_cluster_id
from log_broker.server.quorum.liveness import Liveness
from log_broker.server.quorum.quorum import Quorum

if TYPE_CHECKING:
    from log_broker.server.quorum.authority import Authority, Decide

_log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
PARTITIONS_AT_ONCE_MAX = 250  # in one turn of the event loop

DecideOne = Callable[[ClusterImage, int], MetadataRecord | None]


class ControllerHost(Cluster, HasCounters, HasFeatures, Process, Protocol):
    """What the active controller asks of its node."""

    @property
    def quorum(self) -> Quorum: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def liveness(self) -> Liveness: ...

    @property
    def first_users(self) -> Sequence[UserScramCredentialRecord]:
        """What is kept of the passwords of the users that a new cluster begins with."""
        ...


class Outcome(NamedTuple):
    """What became of one partition of a request; `image` is it as it is now, where there is one to show."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    image: PartitionImage | None = None


class Controller:
    """Decides for the whole cluster, from `start` to `stop`; all methods raise BrokerError when it cannot commit."""

    def __init__(self, node: ControllerHost, authority: "Authority", epoch: int, *, session_ms: int) -> None:
        self.epoch = epoch
        self._node = node
        self._authority = authority
        self._session_ms = session_ms
        self._registry = BrokerRegistry(node.cluster, self._now_ms(), session_ms=session_ms)
        self._session_check: asyncio.TimerHandle | None = None
        self._ended: set[int] = set()  # whose processes were seen to be gone, until they register again
        self._levelling: asyncio.TimerHandle | None = None
        self._due_ms = 0
        self._is_stopped = False

    def start(self) -> None:
        """Begin to watch sessions and leaderships."""
        self._watch_sessions()
        for node_id in self._node.liveness.gone:
            self.process_ended(node_id, certain=True)
        self._level_later()
        if not self._node.cluster.cluster_id:
            self._node.run(self._name_cluster())

    def stop(self) -> None:
        self._is_stopped = True
        for timer in (self._session_check, self._levelling):
            if timer is not None:
                timer.cancel()

    async def _name_cluster(self) -> None:
        """Write the cluster's id down for all."""
        named = ClusterNamed(cluster_id=self._node.cluster_id or fresh_cluster_id())

        def decide(image: ClusterImage) -> list[MetadataRecord]:
            if image.cluster_id:
                return []
            # What other releases have written before counts as theirs until somebody raises the levels.
            if image.version:
                return [named]
            # Users need a level that knows of them, which is in force behind the records of the levels only.
            levels = first_levels(self._node.features)
            knows_users = self._node.features[METADATA_VERSION].highest >= USERS_FROM
            return [named, *levels, *(self._node.first_users if knows_users else ())]

        with suppress(BrokerError):  # the next controller does it
            await self._authority.submit(decide)

    async def register(self, wanted: Registration) -> int:
        """Take in a broker that came up and return its broker epoch."""
        self._ended.discard(wanted.node_id)
        await self._submit(lambda image: self._registry.register(image, wanted, self._now_ms()))
        return self._node.cluster.brokers[wanted.node_id].epoch

    def heard_of(self, beat: Heartbeat) -> HeartbeatAnswer:
        """Take in a sign of life; where there is something to decide, `heartbeat` does, and gives the answer."""
        # A fence that is decided cannot be taken back, so it ends the lease however long it takes to be committed.
        check_broker_epoch(self._authority.decided, beat.node_id, beat.broker_epoch)
        # Most change nothing, and need no turn among the decisions.
        answer = self._registry.heartbeat(self._node.cluster, beat, self._now_ms())
        if not answer.records and not self._node.quorum.surely_leads:
            # Another may have been elected and fence the broker a session after that, sooner than the lease ends.
            raise BrokerError(ErrorCode.NOT_CONTROLLER, "a majority of the voters has not been heard from for long")
        return answer

    async def heartbeat(self, beat: Heartbeat) -> HeartbeatAnswer:
        """Take in a sign of life; the answer prolongs the broker's lease."""
        answer = self.heard_of(beat)
        if not answer.records:
            return answer

        def decide(image: ClusterImage) -> Sequence[MetadataRecord]:
            nonlocal answer
            answer = self._registry.heartbeat(image, beat, self._now_ms())
            return answer.records

        await self._submit(decide)
        return answer

    async def alter_partitions(self, node_id: int, broker_epoch: int, wishes: Sequence[IsrWish]) -> list[Outcome]:
        """Decide on the ISRs that a leader wants; raises BrokerError also for a broker epoch that is over."""
        outcomes: list[Outcome] = []

        def decide(some: Sequence[IsrWish], image: ClusterImage) -> Sequence[MetadataRecord]:
            check_broker_epoch(image, node_id, broker_epoch)
            records: list[MetadataRecord] = []
            for wish in some:
                try:
                    change = alter_partition(image, node_id, without_unable(image, wish, self._registry.unable))
                    self._check_leavers(image, wish)
                except BrokerError as error:
                    outcomes.append(Outcome(error.code))
                    continue
                if change is not None:
                    records.append(change)
                    image.replay(change)
                topic = image.topic_by_id(wish.topic_id)
                assert topic is not None, "it was just decided on"
                now = topic.partitions[wish.partition]
                has_moved = change is not None and change.leader is not None and now.leader != node_id
                outcomes.append(Outcome(ErrorCode.NEW_LEADER_ELECTED if has_moved else ErrorCode.NONE, image=now))
            return records

        async for some in in_turns(wishes, PARTITIONS_AT_ONCE_MAX):
            await self._submit(partial(decide, some))
        return outcomes

    def _check_leavers(self, image: ClusterImage, wish: IsrWish) -> None:
        """Raise BrokerError(OPERATION_NOT_ATTEMPTED) while somebody who shall leave the ISR may hold an old lease."""
        topic = image.topic_by_id(wish.topic_id)
        assert topic is not None, "it was just decided on"
        leavers = set(topic.partitions[wish.partition].isr) - {member.node_id for member in wish.isr}
        for node_id in leavers:
            if self._registry.may_have_missed_leaders(node_id, self._now_ms()):
                raise BrokerError(
                    ErrorCode.OPERATION_NOT_ATTEMPTED, f"node {node_id} may not know yet that it leads no more"
                )

    async def elect_leaders(self, places: Iterable[tuple[str, int]], election_type: int) -> list[Outcome]:
        """Hold elections of the type that ElectLeaders names, one for each place."""
        wanted = list(places)
        return await self._each(
            len(wanted), lambda image, number: elections.elect(image, *wanted[number], election_type)
        )

    async def reassign(
        self, wanted: Sequence[tuple[str, int, Sequence[int] | None]], *, may_change_factor: bool
    ) -> list[Outcome]:
        """Begin, change or with None cancel moves of partitions."""
        least = self._node.config.fluvial_replication_factor_min
        return await self._each(
            len(wanted),
            lambda image, number: reassign(
                image, *wanted[number], may_change_factor=may_change_factor, least_factor=least
            ),
        )

    async def _each(self, count: int, decide_one: DecideOne) -> list[Outcome]:
        """Decide on `count` things one after the other, each answered on its own, and commit so many at a time."""
        outcomes: list[Outcome] = []

        def decide(numbers: Sequence[int], image: ClusterImage) -> Sequence[MetadataRecord]:
            records: list[MetadataRecord] = []
            for number in numbers:
                try:
                    record = decide_one(image, number)
                except BrokerError as error:
                    outcomes.append(Outcome(error.code, str(error)))
                    continue
                outcomes.append(Outcome())
                if record is not None:
                    image.replay(record)
                    records.append(record)
            return records

        async for numbers in in_turns(range(count), PARTITIONS_AT_ONCE_MAX):
            await self._submit(partial(decide, numbers))
        return outcomes

    async def _submit(self, decide: "Decide") -> None:
        """Have a decision committed."""
        records: Sequence[MetadataRecord] = ()

        def deciding(image: ClusterImage) -> Sequence[MetadataRecord]:
            nonlocal records
            records = decide(image)
            return records

        await self._authority.submit(deciding)
        if any(isinstance(record, PartitionChanged) and record.leader is not None for record in records):
            self._registry.leaders_changed(self._node.cluster)
        for record in records:
            if isinstance(record, PartitionChanged) and record.recovering:
                self._node.counters.unclean_elections += 1
                name = self._node.cluster.names.get(record.topic_id)
                _log.warning("unclean election: node %s leads %s-%d", record.leader, name, record.partition)
        if not self._is_stopped:
            self._watch_sessions()

    def _watch_sessions(self) -> None:
        if self._session_check is not None:
            self._session_check.cancel()
            self._session_check = None
        deadline_ms = self._registry.next_deadline_ms(self._node.cluster)
        if deadline_ms is not None:
            self._check_sessions_at(deadline_ms)

    def fenced_because(self, node_id: int) -> Fencing:
        """Tell why a broker that has just been fenced was."""
        broker = self._node.cluster.brokers.get(node_id)
        if node_id in self._ended:
            return Fencing.ENDED
        heard = broker is not None and self._registry.heard_ms(node_id) > self._now_ms() - self._session_ms
        return Fencing.LEFT if heard else Fencing.SILENT

    def process_ended(self, node_id: int, certain: bool) -> None:
        """Fence a broker whose process is gone; one that was never reached from here may still send a heartbeat."""
        silent_ms = 0 if certain else int(1.5 * self._node.config.broker_heartbeat_interval_ms)
        if self._registry.has_ended(node_id, self._now_ms(), silent_ms=silent_ms):
            _log.warning("node %d is gone: nobody listens at its address", node_id)
            self._ended.add(node_id)
            self._check_sessions()

    def _check_sessions_at(self, due_ms: int) -> None:
        self._due_ms = due_ms
        delay = max(due_ms - self._now_ms(), 0) / 1000
        self._session_check = self._node.loop.call_later(delay, self._check_sessions)

    def _check_sessions(self) -> None:
        now_ms = self._now_ms()
        if now_ms - self._due_ms > self._session_ms // 3:
            # This process was paused: what it did not hear meanwhile waits in its sockets.
            self._registry.hear_all(self._node.cluster, now_ms)
        if self._registry.expired(self._node.cluster.draft(), now_ms):
            self._node.run(self._fence_expired())
        else:
            self._watch_sessions()

    async def _fence_expired(self) -> None:
        try:
            await self._submit(lambda image: self._registry.expired(image, self._now_ms()))
        except BrokerError as error:
            if not self._is_stopped:
                _log.warning("brokers that were not heard of cannot be fenced: %s", error)
                self._check_sessions_at(self._now_ms() + int(RETRY_SECONDS * 1000))

    def _level_later(self) -> None:
        seconds = self._node.config.leader_imbalance_check_interval_seconds
        self._levelling = self._node.loop.call_later(seconds, lambda: self._node.run(self._level()))

    async def _level(self) -> None:
        config = self._node.config
        try:
            if config.auto_leader_rebalance_enable:
                percentage = config.leader_imbalance_per_broker_percentage
                await self._submit(lambda image: elections.level(image, percentage))
        except BrokerError as error:
            _log.warning("leaderships cannot be levelled: %s", error)
        if not self._is_stopped:
            self._level_later()

    def _now_ms(self) -> int:
        """Monotonic time: a clock that is set must not end sessions."""
        return int(self._node.loop.time() * 1000)


class HasController(Protocol):
    """A node that may be the active controller."""

    @property
    def controller(self) -> Controller | None: ...

    @property
    def controller_id(self) -> int: ...


def active_controller(node: HasController) -> Controller:
    """Return the controller that runs in this node; raises BrokerError(NOT_CONTROLLER)."""
    if node.controller is None:
        raise BrokerError(ErrorCode.NOT_CONTROLLER, f"the controller is node {node.controller_id}")
    return node.controller
