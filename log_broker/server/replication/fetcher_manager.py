"""
Whom this node fetches from: a fetcher for each node that leads partitions which are followed here.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol

from log_broker.core.cluster.image import NO_LEADER
from log_broker.core.fetch.quota import ReplicationQuota
from log_broker.core.fetch.replica_fetcher import FetcherSettings, ReplicaFetcher
from log_broker.core.fetch.replica_messages import UNKNOWN, TopicIdPartition
from log_broker.server.net.ports import HasPeers
from log_broker.server.partitions.compactor import TopicPartition
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.server.process.ports import Cluster
from log_broker.server.replication.leader_fetching import LeaderFetching
from log_broker.server.replication.loss_reports import LossReports
from log_broker.wire.framing import STAGING_BYTES


class FetchersHost(Cluster, HasPeers, Protocol):
    """What fetching from leaders asks of the node."""


class FetcherManager:
    """The fetchers of one node, one for each leader; one without partitions is stopped."""

    def __init__(self, node: FetchersHost, loop: asyncio.AbstractEventLoop, reports: LossReports) -> None:
        self.loop = loop
        self.dialer = node.peers.dialer
        self.staging = memoryview(bytearray(STAGING_BYTES))
        self.reports = reports
        self.quota = ReplicationQuota()
        self.corrupt_fetches = 0
        self._node = node
        self._settings = FetcherSettings()
        self._bytes_in_before = 0  # from leaders that are not fetched from any more
        self._fetching: dict[int, LeaderFetching] = {}
        self._followed: dict[TopicPartition, tuple[TopicIdPartition, LeaderFetching]] = {}

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

    def follow(
        self, place: TopicPartition, runtime: PartitionRuntime, leader: tuple[int, int], *, is_throttled: bool
    ) -> None:
        """Fetch a partition from its `leader`, (node, leader epoch), if it is known where that listens."""
        leader_id, leader_epoch = leader
        fetching = self._fetching_from(leader_id)
        if fetching is None:
            self.unfollow(place)
            return
        fetched_as = (runtime.topic_id.bytes, place[1])
        known = self._followed.get(place)
        if known is not None and known != (fetched_as, fetching):
            self.unfollow(place)
            fetching = self._fetching_from(leader_id) or fetching
        self._followed[place] = (fetched_as, fetching)
        fetching.follow(fetched_as, runtime, leader_epoch, is_throttled=is_throttled)

    def unfollow(self, place: TopicPartition) -> None:
        """Fetch a partition no more; one that is not fetched is no error."""
        known = self._followed.pop(place, None)
        if known is None:
            return
        fetched_as, fetching = known
        fetching.unfollow(fetched_as)
        if not len(fetching) and self._fetching.get(fetching.leader_id) is fetching:
            self._bytes_in_before += fetching.bytes_in
            fetching.stop()
            del self._fetching[fetching.leader_id]

    def take_settings(self) -> Sequence[TopicPartition]:
        """
        Go by the config and the addresses of now.

        Returns the partitions whose leader listens elsewhere now, or nowhere: they are to be followed again.
        """
        config = self._node.config
        self.quota.rate = config.follower_replication_throttled_rate
        self._settings = FetcherSettings(
            wait_ms_max=config.replica_fetch_wait_max_ms,
            bytes_min=config.replica_fetch_min_bytes,
            bytes_max=config.replica_fetch_response_max_bytes,
            partition_bytes_max=config.replica_fetch_max_bytes,
            backoff_ms_max=config.replica_fetch_backoff_ms,
        )
        epoch = self._broker_epoch()
        for fetching in self._fetching.values():
            fetching.fetcher.settings = self._settings
            fetching.fetcher.broker_epoch = epoch
        moved = [
            place
            for place, (_, fetching) in self._followed.items()
            if fetching.address != self._address_of(fetching.leader_id)
        ]
        for place in moved:
            self.unfollow(place)
        return moved

    def stop(self) -> None:
        """Fetch no more."""
        for fetching in self._fetching.values():
            fetching.stop()
        self._fetching.clear()
        self._followed.clear()

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

    def _address_of(self, node_id: int) -> tuple[str, int] | None:
        broker = self._node.cluster.brokers.get(node_id)
        return None if broker is None else (broker.host, broker.port)

    def _broker_epoch(self) -> int:
        broker = self._node.cluster.brokers.get(self._node.config.node_id)
        return UNKNOWN if broker is None else broker.epoch
