"""
Makes the image of the cluster true on this node: the replicas it holds, which of them it leads, whom it fetches from.

A replica that the image moves away is deleted. What is on the disk and in no image is another matter: it may belong to
a cluster whose metadata were lost, so it is moved aside first and removed later, and nothing is touched on the word of
an image without any topic.
"""

import asyncio
import logging
from functools import partial
from typing import Protocol
from uuid import UUID

from log_broker.core.cluster.image import METADATA_TOPIC, PartitionImage, TopicImage
from log_broker.core.fetch.quota import ThrottledReplicas
from log_broker.server.partitions.ports import Partitions
from log_broker.server.partitions.refusals import RefusalHost, Refusals
from log_broker.server.replication.fetcher_manager import FetcherManager
from log_broker.server.replication.isr_proposals import IsrProposals, ProposalHost, leadership_of
from log_broker.server.replication.log_repair import LogRepair, RepairHost
from log_broker.server.replication.loss_reports import LossReports
from log_broker.server.replication.replica_fetches import ReplicaFetches

_log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0  # after a disk error
MADE_AT_ONCE_MAX = 10  # new partitions in one turn of the event loop; each takes about a millisecond


class TopicListener(Protocol):
    """Who must know of topics that are gone."""

    def topic_deleted(self, topic: str) -> None: ...


class ReplicaHost(Partitions, ProposalHost, RefusalHost, RepairHost, Protocol):
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
        self.reports = LossReports(node)
        self.fetchers = FetcherManager(node, node.loop, self.reports)
        self.isr = IsrProposals(node)
        self.repair = LogRepair(node)
        self._refusals = Refusals(node)
        self._node = node
        self._applied: dict[str, TopicImage] = {}
        self._version = 0
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
        self.fetchers.stop()

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

    def _take_settings(self) -> None:
        self._node.replica_fetches.quota.rate = self._node.config.leader_replication_throttled_rate
        image = self._node.cluster.topics
        for name, index in self.fetchers.take_settings():
            topic = image.get(name)
            # What has changed is applied after this anyway.
            if topic is not None and topic is self._applied.get(name):
                self._apply_partition(topic, index, topic.partitions[index])

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
            self.reports.left_behind(runtime)
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
        runtime.replica.on_refused = partial(self._refusals.add, topic.name, index)
        self.reports.missing_records(runtime)
        # Who is known to have nothing of it any more is no longer in sync, and led it last.
        holders = {*partition.isr, *partition.elr} or {partition.last_known_leader}
        if not had_log and partition.leader_epoch > 0 and holders == {node.config.node_id}:
            self.reports.missing_log(runtime, partition)
        if partition.leader == node.config.node_id:
            self.fetchers.unfollow((topic.name, index))
            runtime.replica.on_isr_wanted = partial(self.isr.propose, runtime)
            runtime.role.become_leader(leadership_of(partition))
            return
        runtime.role.become_follower(partition.leader_epoch, partition.leader)
        throttled = ThrottledReplicas(topic.config.follower_replication_throttled_replicas)
        self.fetchers.follow(
            (topic.name, index),
            runtime,
            (partition.leader, partition.leader_epoch),
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
        self.fetchers.unfollow((topic, index))
        runtime = self._node.logs.get(topic, index)
        if runtime is not None:
            self.reports.left_behind(runtime)
        try:
            if not aside:
                self._node.logs.delete(topic, index)
            elif runtime is not None:
                _log.error("%s-%d is not in the cluster's metadata, which have gone back: moved aside", topic, index)
                self._node.logs.set_aside(topic, index)
        except OSError as error:
            _log.error("the partition %s-%d could not be deleted: %s", topic, index, error)
