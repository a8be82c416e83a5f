"""
Makes the image of the cluster true on this node: the replicas it holds, which of them it leads, whom it fetches from.

A replica that the image moves away is deleted. What is on the disk and in no image is another matter: it may belong to
a cluster whose metadata were lost, so it is moved aside first and removed later, and nothing is touched on the word of
an image without any topic.
"""

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import Protocol
from uuid import UUID

from log_broker.core.cluster.image import METADATA_TOPIC, NO_LEADER, PartitionImage, TopicImage
from log_broker.core.fetch.quota import ReplicationQuota, ThrottledReplicas
from log_broker.core.fetch.replica_fetcher import FetcherSettings, ReplicaFetcher
from log_broker.core.fetch.replica_messages import UNKNOWN, TopicIdPartition
from log_broker.core.partition.following import Lost
from log_broker.core.partition.replication import IsrProposal
from log_broker.server.partitions.ports import Partitions
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.server.replication.isr_proposals import IsrProposals, ProposalHost, leadership_of
from log_broker.server.replication.leader_fetching import LeaderFetching
from log_broker.server.replication.log_repair import LogRepair, RepairHost
from log_broker.server.replication.replica_fetches import ReplicaFetches
from log_broker.wire.framing import STAGING_BYTES

_log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0  # after a disk error
MADE_AT_ONCE_MAX = 10  # new partitions in one turn of the event loop; each takes about a millisecond


class TopicListener(Protocol):
    """Who must know of topics that are gone."""

    def topic_deleted(self, topic: str) -> None: ...


class ReplicaHost(Partitions, ProposalHost, RepairHost, Protocol):
    """What keeping replicas asks of the node."""

    @property
    def groups(self) -> TopicListener: ...

    @property
    def replica_fetches(self) -> ReplicaFetches: ...

    def apply_image(self) -> None:
        """Make everything here what the image says."""
        ...


class ReplicaManager:
    """All replicas of one node but that of the metadata log."""

    def __init__(self, node: ReplicaHost) -> None:
        self.loop = node.loop
        self.staging = memoryview(bytearray(STAGING_BYTES))
        self.quota = ReplicationQuota()
        self.corrupt_fetches = 0
        self.isr = IsrProposals(node)
        self.repair = LogRepair(node)
        self._node = node
        self._applied: dict[str, TopicImage] = {}
        self._version = 0
        self._bytes_in_before = 0  # from leaders that are not fetched from any more
        self._settings = FetcherSettings()
        self._fetching: dict[int, LeaderFetching] = {}
        self._followed: dict[tuple[str, int], tuple[TopicIdPartition, LeaderFetching]] = {}
        self._unmade: set[tuple[str, int]] = set()  # what the disk did not take of the image that is applied
        self._retry: asyncio.TimerHandle | None = None
        self._due: set[tuple[str, int]] = set()  # new ones whose turn has not come
        self._room = 0  # how many more may be made in this turn
        self._next_turn: asyncio.Handle | None = None
        self._all_made: asyncio.Future[None] | None = None
        self._is_stopped = False

    def stop(self) -> None:
        """Fetch no more, and take no more images in: the quorum tells of some while the node stops."""
        self._is_stopped = True
        for timer in (self._retry, self._next_turn):
            if timer is not None:
                timer.cancel()
        self._no_more_due()
        for fetching in self._fetching.values():
            fetching.stop()
        self._fetching.clear()
        self._followed.clear()

    @property
    def bytes_in(self) -> int:
        """How much was fetched from leaders."""
        return self._bytes_in_before + sum(fetching.bytes_in for fetching in self._fetching.values())

    def lags(self) -> Iterable[tuple[PartitionRuntime, int, int]]:
        """Yield (replica, node it is fetched from, offsets behind it)."""
        for fetching in self._fetching.values():
            for runtime, lag in fetching.lags():
                yield runtime, fetching.leader_id, lag

    def silence_ms_max(self) -> int:
        """How long a leader may owe an answer."""
        return self._node.config.replica_socket_timeout_ms

    # The image.

    def apply(self) -> None:
        """Take what has changed in the image since the last time, and what the disk did not take then."""
        if self._is_stopped:
            return
        self._take_settings()
        cluster = self._node.cluster
        image = cluster.topics
        # An image grows by records. One that is shorter than that before is of another history, and orders no deletion.
        went_back, self._version = cluster.version < self._version, cluster.version
        for name, old in self._applied.items():
            new = image.get(name)
            if new is None or new.topic_id != old.topic_id:
                self._drop_topic(old, aside=went_back)
        self._room = MADE_AT_ONCE_MAX
        unmade = {name for name, _ in self._unmade | self._due}
        for name, topic in image.items():
            before = self._applied.get(name)
            if before is not topic or name in unmade:
                same = before if before is not None and before.topic_id == topic.topic_id else None
                self._apply_topic(topic, same)
        self._applied = dict(image)
        if self._unmade and self._retry is None:
            self._retry = self.loop.call_later(RETRY_SECONDS, self._apply_again)
        if not self._due:
            self._no_more_due()
        elif self._next_turn is None:
            self._next_turn = self.loop.call_soon(self._go_on)

    def is_due(self, topic: str, partition: int) -> bool:
        """Whether a new partition is about to be made here."""
        return (topic, partition) in self._due

    async def until_made(self) -> None:
        """Return when all new partitions of the image are made here, or the disk did not take them."""
        while self._due:
            if self._all_made is None:
                self._all_made = self.loop.create_future()
            await asyncio.shield(self._all_made)

    def _no_more_due(self) -> None:
        waited, self._all_made = self._all_made, None
        if self._is_stopped:
            self._due.clear()
        if waited is not None and not waited.done():
            waited.set_result(None)

    def _go_on(self) -> None:
        self._next_turn = None
        self._node.apply_image()

    def _apply_again(self) -> None:
        """No change of the image need come that would do it."""
        self._retry = None
        self._node.apply_image()  # also what coordinates by the partitions that are led here

    def remove_strays(self) -> None:
        """Move aside what is on the disk and not this node's: its topic was deleted or moved while it was down."""
        node = self._node
        strays = [
            runtime
            for runtime in node.logs.partitions()
            if runtime.topic != METADATA_TOPIC and not self._is_held(runtime.topic, runtime.partition, runtime.topic_id)
        ]
        if strays and not node.cluster.topics:
            _log.error(
                "the cluster knows no topic and %d partitions are here: they stay on the disk untouched", len(strays)
            )
            return
        for runtime in strays:
            _log.warning("%s-%d is no replica of this cluster: moved aside", runtime.topic, runtime.partition)
            self._report_left_behind(runtime)
            node.logs.set_aside(runtime.topic, runtime.partition)
        for topic, partition in list(node.logs.unidentified) if node.cluster.topics else ():
            image = node.cluster.topics.get(topic)
            if image is None or not self._is_held(topic, partition, UUID(hex=image.topic_id)):
                _log.warning("%s-%d, of a topic unknown, is no replica of this cluster: moved aside", topic, partition)
                node.logs.set_aside(topic, partition)

    def _is_held(self, topic: str, partition: int, topic_id: UUID) -> bool:
        image = self._node.cluster.topics.get(topic)
        return (
            image is not None
            and topic_id.int == int(image.topic_id, 16)
            and 0 <= partition < len(image.partitions)
            and self._node.config.node_id in image.partitions[partition].replicas
        )

    def _take_settings(self) -> None:
        node, config = self._node, self._node.config
        self.quota.rate = config.follower_replication_throttled_rate
        node.replica_fetches.quota.rate = config.leader_replication_throttled_rate
        self._settings = FetcherSettings(
            wait_ms_max=config.replica_fetch_wait_max_ms,
            bytes_min=config.replica_fetch_min_bytes,
            bytes_max=config.replica_fetch_response_max_bytes,
            partition_bytes_max=config.replica_fetch_max_bytes,
            backoff_ms_max=config.replica_fetch_backoff_ms,
        )
        epoch = self._broker_epoch()
        for leader_id, fetching in list(self._fetching.items()):
            fetching.fetcher.settings = self._settings
            fetching.fetcher.broker_epoch = epoch
            if fetching.address != self._address_of(leader_id):
                self._move(fetching)

    def _apply_topic(self, topic: TopicImage, before: TopicImage | None) -> None:
        same_config = before is not None and before.config == topic.config
        known = before.partitions if before is not None else ()
        for index, partition in enumerate(topic.partitions):
            is_known = same_config and index < len(known) and known[index] is partition
            if is_known and (topic.name, index) not in self._unmade and (topic.name, index) not in self._due:
                continue
            if self._node.config.node_id in partition.replicas:
                self._apply_partition(topic, index, partition)
            else:
                self._leave_partition(topic.name, index, partition)

    def _apply_partition(self, topic: TopicImage, index: int, partition: PartitionImage) -> None:
        node = self._node
        had_log = node.logs.get(topic.name, index) is not None
        if not had_log and not self._room:
            self._due.add((topic.name, index))
            return
        self._room -= not had_log
        self._due.discard((topic.name, index))
        try:
            runtime = node.logs.create(topic.name, index, UUID(hex=topic.topic_id), topic.config)
        except OSError as error:
            if (topic.name, index) not in self._unmade:
                _log.error("the partition %s-%d could not be made: %s", topic.name, index, error)
                self._unmade.add((topic.name, index))
                text = f"{topic.name}-{index} is offline on node {node.config.node_id}: {error}"
                node.events.note("partition_offline", text, topic=topic.name, partition=index)
            return
        self._unmade.discard((topic.name, index))
        runtime.replica.on_damaged = partial(self.repair.damaged, runtime)
        self._report_holes(runtime)
        if not had_log and partition.leader_epoch > 0 and {*partition.isr, *partition.elr} == {node.config.node_id}:
            self._report_missing(runtime, partition)
        if partition.leader == node.config.node_id:
            self._unfollow(topic.name, index)
            runtime.replica.on_isr_wanted = partial(self._isr_wanted, runtime)
            runtime.role.become_leader(leadership_of(partition))
            return
        runtime.role.become_follower(partition.leader_epoch, partition.leader)
        fetching = self._fetching_from(partition.leader)
        if fetching is None:
            self._unfollow(topic.name, index)
            return
        place = (runtime.topic_id.bytes, index)
        known = self._followed.get((topic.name, index))
        if known is not None and known != (place, fetching):
            self._unfollow(topic.name, index)
            fetching = self._fetching_from(partition.leader) or fetching
        self._followed[topic.name, index] = (place, fetching)
        throttled = ThrottledReplicas(topic.config.follower_replication_throttled_replicas)
        fetching.follow(
            place,
            runtime,
            partition.leader_epoch,
            is_throttled=node.config.node_id not in partition.isr and throttled.has(index, node.config.node_id),
        )

    def _leave_partition(self, topic: str, index: int, partition: PartitionImage) -> None:
        """Give up a replica that was moved away: others go on without it."""
        runtime = self._node.logs.get(topic, index)
        if runtime is not None:
            # What is being written is not among what is said to be left behind, so nobody may be told that it is kept.
            runtime.role.become_follower(partition.leader_epoch, partition.leader)
        self._drop_partition(topic, index)

    def _drop_topic(self, topic: TopicImage, *, aside: bool) -> None:
        for index in range(len(topic.partitions)):
            self._drop_partition(topic.name, index, aside=aside)
        self._node.groups.topic_deleted(topic.name)

    def _drop_partition(self, topic: str, index: int, *, aside: bool = False) -> None:
        self._unmade.discard((topic, index))
        self._due.discard((topic, index))
        self._unfollow(topic, index)
        runtime = self._node.logs.get(topic, index)
        if runtime is not None:
            self._report_left_behind(runtime)
        try:
            if not aside:
                self._node.logs.delete(topic, index)
            elif runtime is not None:
                _log.error("%s-%d is not in the cluster's metadata, which have gone back: moved aside", topic, index)
                self._node.logs.set_aside(topic, index)
        except OSError as error:
            _log.error("the partition %s-%d could not be deleted: %s", topic, index, error)

    # Fetching.

    def _fetching_from(self, leader_id: int) -> LeaderFetching | None:
        """Return what fetches from a node, made if it is not there; None where nobody leads or nobody knows where."""
        found = self._fetching.get(leader_id)
        if found is not None:
            return found
        address = None if leader_id == NO_LEADER else self._address_of(leader_id)
        if address is None:
            return None
        fetcher = ReplicaFetcher(
            self._node.config.node_id, self._settings, broker_epoch=self._broker_epoch(), quota=self.quota
        )
        made = self._fetching[leader_id] = LeaderFetching(self, fetcher, leader_id, address)
        return made

    def _unfollow(self, topic: str, index: int) -> None:
        known = self._followed.pop((topic, index), None)
        if known is None:
            return
        place, fetching = known
        fetching.unfollow(place)
        if not len(fetching) and self._fetching.get(fetching.leader_id) is fetching:
            self._bytes_in_before += fetching.bytes_in
            fetching.stop()
            del self._fetching[fetching.leader_id]

    def _move(self, fetching: LeaderFetching) -> None:
        """A node listens elsewhere now, or nowhere: what is fetched from it is applied again."""
        places = [place for place, (_, known) in self._followed.items() if known is fetching]
        for name, index in places:
            self._unfollow(name, index)
        image = self._node.cluster.topics
        for name, index in places:
            topic = image.get(name)
            # What has changed is applied after this anyway.
            if topic is not None and topic is self._applied.get(name):
                self._apply_partition(topic, index, topic.partitions[index])

    def _address_of(self, node_id: int) -> tuple[str, int] | None:
        broker = self._node.cluster.brokers.get(node_id)
        return None if broker is None else (broker.host, broker.port)

    def _broker_epoch(self) -> int:
        broker = self._node.cluster.brokers.get(self._node.config.node_id)
        return UNKNOWN if broker is None else broker.epoch

    def _isr_wanted(self, runtime: PartitionRuntime, proposal: IsrProposal) -> None:
        self.isr.propose(runtime, proposal)

    # What went wrong.

    def _report_missing(self, runtime: PartitionRuntime, partition: PartitionImage) -> None:
        """Say that a partition begins again: it was led before, and no other replica need have its records."""
        node_id = self._node.config.node_id
        text = (
            f"{runtime.topic}-{runtime.partition}: node {node_id}, the last that was in sync, has no log of it;"
            " what it held is lost here, and it begins again at offset 0"
        )
        _log.error("%s", text)
        place = {"topic": runtime.topic, "partition": runtime.partition, "replicas": partition.replicas}
        self._node.events.note("log_lost", text, **place, leader=node_id, leader_epoch=partition.leader_epoch)

    def _report_holes(self, runtime: PartitionRuntime) -> None:
        """Say once which offsets recovery has found to be missing in the middle of a log."""
        for first, end in runtime.take_missing():
            text = (
                f"{runtime.topic}-{runtime.partition}: the disk of node {self._node.config.node_id} has lost the"
                f" offsets {first} to {end - 1}, which this replica cannot serve"
            )
            place = {"topic": runtime.topic, "partition": runtime.partition}
            self._node.events.note("records_missing", text, **place, first_offset=first, end_offset=end)

    def report_lost(self, runtime: PartitionRuntime, leader_id: int, leader_epoch: int, lost: Lost) -> None:
        """Say which records this replica had that its leader has not."""
        text = (
            f"{runtime.topic}-{runtime.partition}: offsets {lost.first} to {lost.end - 1} on node"
            f" {self._node.config.node_id} are not in the log of its leader, node {leader_id}, and were dropped"
        )
        kind = "records_lost" if lost.committed or lost.acknowledged else "truncated"
        self._note_lost(kind, text, runtime, lost, leader=leader_id, leader_epoch=leader_epoch)

    def _report_left_behind(self, runtime: PartitionRuntime) -> None:
        """Say which acknowledged records a replica of a topic that stays takes with it and nobody else may have."""
        topic = self._node.cluster.topics.get(runtime.topic)
        if topic is None or UUID(hex=topic.topic_id) != runtime.topic_id:
            return
        lost = runtime.following.left_behind()
        if lost is not None:
            text = (
                f"{runtime.topic}-{runtime.partition}: node {self._node.config.node_id} is no replica of it any more"
                f" and gives up its log; whether the others have its offsets {lost.first} to {lost.end - 1} it was"
                " never told"
            )
            self._note_lost("records_in_doubt", text, runtime, lost)

    def _note_lost(self, kind: str, text: str, runtime: PartitionRuntime, lost: Lost, **fields: int) -> None:
        _log.warning("%s", text)
        self._node.events.note(
            kind,
            text,
            topic=runtime.topic,
            partition=runtime.partition,
            first_offset=lost.first,
            end_offset=lost.end,
            committed=lost.committed,
            acknowledged=lost.acknowledged,
            **fields,
        )
