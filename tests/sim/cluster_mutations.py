"""
Rules of a cluster, broken on purpose one by one: the simulation must notice each.

    python tests/sim/cluster_mutations.py [--seeds-max N] [--jobs J] [name …]

prints which check notices, and after how many seeds. A mutation replaces attributes of the real classes while it runs.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch
from uuid import UUID

from mutation_hunt import Patch, named, tell

from log_broker.config.broker import TopicConfig
from log_broker.core.cluster import elections, isr_changes
from log_broker.core.cluster.broker_registry import BrokerRegistry, Heartbeat
from log_broker.core.cluster.partition_change import Election
from log_broker.core.groups import consumer_assignment
from log_broker.core.groups.consumer_group import ConsumerGroup
from log_broker.core.groups.consumer_timers import MemberTimers
from log_broker.core.groups.group import Group
from log_broker.core.partition.epochs import LeaderEpochs
from log_broker.core.partition.following import Lost
from log_broker.core.partition.partition import Appends
from log_broker.core.partition.producers import ProducerEntry, ProducerStates
from log_broker.core.partition.protocol import Reply
from log_broker.core.partition.replication import Leading
from log_broker.core.partition.roles import Following, Roles
from log_broker.core.partition.transactions import PartitionTransactions
from log_broker.core.partition.writing import ReplicaState, Writes
from log_broker.core.raft.lease import Lease
from log_broker.core.transactions.protocol import AddPartitions, End
from log_broker.core.transactions.transaction import Transaction
from log_broker.errors import ErrorCode
from log_broker.records.batch import BatchHeader
from log_broker.server.coordinators.groups import GroupCoordinator
from log_broker.server.coordinators.shards import Shards
from log_broker.server.coordinators.transactions import TransactionCoordinator
from log_broker.server.partitions import leading
from log_broker.server.partitions.internal_log import stored_entries
from log_broker.server.partitions.log_manager import LogManager
from log_broker.server.quorum import controller
from log_broker.server.quorum.lifecycle import BrokerLifecycle
from log_broker.server.replication.loss_reports import LossReports
from log_broker.sim.cli import make_cluster
from log_broker.storage import segment
from log_broker.storage.append_job import AppendJob, SealedSync
from log_broker.storage.checkpoints import PARTITION_METADATA_FILE
from log_broker.storage.transaction_index import AbortedTransactions
from log_broker.storage.unsynced import Unsynced


def _acknowledges_before_the_followers() -> list[Patch]:
    return [(Leading, "watermark", lambda self, own_end: own_end)]


def _goes_on_without_enough_in_sync() -> list[Patch]:
    return [(Leading, "lacks_replicas", lambda self, min_insync_replicas: False)]


def _the_leader_shrinks_the_isr_by_itself() -> list[Patch]:
    def maximal(self: Leading) -> frozenset[int]:
        return frozenset(self.isr if self.proposal is None else self.proposal.isr)

    return [(Leading, "maximal_isr", property(maximal))]


def _lets_followers_in_too_early() -> list[Patch]:
    def belongs(self: Leading, replica_id: int, *_: object) -> bool:
        return replica_id == self._node_id or self.followers[replica_id].end >= 0

    return [(Leading, "_belongs", belongs)]


def _followers_do_not_sync() -> list[Patch]:
    def set_role_rules(self: ReplicaState) -> None:
        real(self)
        self.syncs_each_write = self.syncs_each_write and self.is_leader

    real = ReplicaState.set_role_rules
    return [(ReplicaState, "set_role_rules", set_role_rules)]


def _acknowledges_before_fsync() -> list[Patch]:
    def run(self: AppendJob) -> None:
        if self.target is not None:
            self.target.write_at(self.position, self.buffers)

    return [(AppendJob, "__call__", run)]


def _leader_does_not_look_for_divergence() -> list[Patch]:
    def read_for_replica(core: Any, log: Any, offset: int, max_bytes: int, _: int, **rest: Any) -> Any:
        return real(core, log, offset, max_bytes, -1, **rest)

    real = leading.read_for_replica
    return [(leading, "read_for_replica", read_for_replica)]


def _epochs_end_where_the_log_does() -> list[Patch]:
    def end_offset(self: LeaderEpochs, epoch: int, log_end_offset: int) -> tuple[int, int]:
        return epoch, log_end_offset

    return [(LeaderEpochs, "end_offset", end_offset)]


def _follower_truncates_in_memory_only() -> list[Patch]:
    """The log of the partition is cut, its producers and epochs are as before."""

    def truncate(self: Following, offset: int) -> Lost | None:
        before = self._state.producers
        lost = real(self, offset)
        self._producers_before = before  # type: ignore[attr-defined]
        return lost

    def truncated(self: Following, producers: ProducerStates, ending: Sequence[Any]) -> None:
        real_end(self, self._producers_before, ending)  # type: ignore[attr-defined]

    real, real_end = Following.truncate, Following.truncated
    return [(Following, "truncate", truncate), (Following, "truncated", truncated)]


def _a_deposed_leader_goes_on() -> list[Patch]:
    def become_follower(self: Roles, leader_epoch: int, leader_id: int) -> Sequence[Any]:
        return () if self._state.is_leader else real(self, leader_epoch, leader_id)

    real = Roles.become_follower
    return [(Roles, "become_follower", become_follower)]


def _elects_from_outside_the_isr() -> list[Patch]:
    return [(elections, "election_for", lambda topic: Election.UNCLEAN)]


def _fenced_brokers_join_the_isr() -> list[Patch]:
    return [(isr_changes, "_check_eligible", lambda image, member: None)]


def _an_empty_disk_is_taken_for_the_old_one() -> list[Patch]:
    def forget(image: Any, node_id: int, *, is_clean: bool, is_wiped: bool) -> Any:
        return real(image, node_id, is_clean=is_clean, is_wiped=False)

    real = elections.forget
    return [(elections, "forget", forget)]


def _power_cuts_are_taken_for_clean_stops() -> list[Patch]:
    def forget(image: Any, node_id: int, *, is_clean: bool, is_wiped: bool) -> Any:
        return real(image, node_id, is_clean=True, is_wiped=is_wiped)

    real = elections.forget
    return [(elections, "forget", forget)]


def _followers_forget_producers() -> list[Patch]:
    def replay(self: Following, batch: Any, header: Any, now_ms: int) -> ProducerEntry | None:
        return self._state.producers.get(header.producer_id)

    return [(Following, "_replay", replay)]


def _takes_repeated_batches() -> list[Patch]:
    return [(ProducerStates, "check", lambda self, header: None)]


def _answers_repeats_at_once() -> list[Patch]:
    def repeat(self: Appends, stored: Any, acks: int, token: Any) -> Any:
        return real(self, stored, 1 if acks < 0 else acks, token)

    real = Appends.repeat
    return [(Appends, "repeat", repeat)]


def _followers_believe_their_own_end() -> list[Patch]:
    def append_fetched(self: Following, records: Any, leader_epoch: int, _: int, *rest: Any, now_ms: int) -> Any:
        return real(self, records, leader_epoch, 2**62, *rest, now_ms=now_ms)

    real = Following.append_fetched
    return [(Following, "append_fetched", append_fetched)]


def _reads_open_transactions() -> list[Patch]:
    return [(ReplicaState, "last_stable_offset", property(lambda self: self.high_watermark))]


def _does_not_name_aborted_transactions() -> list[Patch]:
    return [(AbortedTransactions, "between", lambda self, first, end: ())]


def _markers_end_no_transaction_on_followers() -> list[Patch]:
    def replay(self: Following, batch: Any, header: Any, now_ms: int) -> ProducerEntry | None:
        return self._state.producers.get(header.producer_id) if header.is_control else real(self, batch, header, now_ms)

    real = Following._replay
    return [(Following, "_replay", replay)]


def _group_offsets_are_not_replayed() -> list[Patch]:
    def replay(self: GroupCoordinator, shard: Any, raw_key: bytes, value: bytes | None, producer_id: int) -> None:
        if raw_key[:2] not in {b"\x00\x00", b"\x00\x01"}:
            real(self, shard, raw_key, value, producer_id)

    real = GroupCoordinator._replay
    return [(GroupCoordinator, "_replay", replay)]


def _transactions_are_not_replayed() -> list[Patch]:
    return [(TransactionCoordinator, "replay", lambda self, shard, header, content: None)]


def _decided_transactions_are_not_finished() -> list[Patch]:
    return [(Transaction, "resume", lambda self: ())]


def _coordinators_load_what_is_committed_by_then() -> list[Patch]:
    """They do not wait until all is that their predecessor has answered."""

    def load(self: Shards[Any], shard: Any) -> Iterator[int | None]:
        for header, content in stored_entries(
            shard.runtime, shard.runtime.log_start_offset, shard.runtime.high_watermark
        ):
            self._owner.replay(shard, header, content)
        shard.is_replayed = True
        list(self._owner.replayed(shard))
        shard.is_loaded = True
        self._owner.loaded(shard)
        yield from ()

    return [(Shards, "_load", load)]


def _no_lease() -> list[Patch]:
    return [(Lease, "valid", property(lambda self: True))]


def _who_is_being_fenced_is_told_that_it_is_not() -> list[Patch]:
    return [(controller, "check_broker_epoch", lambda *_: None)]


def _who_was_replaced_keeps_its_lease() -> list[Patch]:
    return [(BrokerRegistry, "leaders_changed", lambda self, image: None)]


def _does_not_report_losses() -> list[Patch]:
    return [(LossReports, "dropped", lambda *_: None)]


def _any_member_may_commit() -> list[Patch]:
    return [(Group, "_check_commit", lambda self, commit, now_ms: ErrorCode.NONE)]


def _zombies_are_not_fenced() -> list[Patch]:
    """An old epoch is taken for the current one, by the coordinator and by the partitions."""

    def handle(self: Transaction, event: Any, now_ms: int) -> Sequence[Any]:
        if isinstance(event, AddPartitions | End) and event.producer_id == self.current.producer_id:
            event = replace(event, producer_epoch=self.current.producer_epoch)
        return real_handle(self, event, now_ms)

    def check(self: ProducerStates, header: BatchHeader) -> Any:
        entry = self.get(header.producer_id)
        if entry is not None and header.producer_epoch < entry.epoch:
            return None
        return real_check(self, header)

    real_handle, real_check = Transaction.handle, ProducerStates.check
    return [
        (Transaction, "handle", handle),
        (ProducerStates, "check", check),
        (ProducerStates, "check_epoch", lambda *_: None),
        (PartitionTransactions, "admit", lambda *_: None),
    ]


def _transactions_need_not_be_open() -> list[Patch]:
    return [(PartitionTransactions, "admit", lambda self, header: None)]


def _does_not_check_what_it_recovers() -> list[Patch]:
    return [(segment, "crc_is_valid", lambda batch, crc: True)]


def _who_is_no_longer_a_member_may_commit() -> list[Patch]:
    return [(ConsumerGroup, "check_commit", lambda *_, **__: ErrorCode.NONE)]


def _partitions_are_handed_over_before_they_are_given_up() -> list[Patch]:
    def reconcile(current: Any, **known: Any) -> Any:
        return real(current, **{**known, "owners": {}})

    real = consumer_assignment.reconcile
    return [(consumer_assignment, "reconcile", reconcile)]


def _members_of_consumer_groups_never_expire() -> list[Patch]:
    return [(MemberTimers, "hear", lambda self, state, member_id, now_ms: None)]


def _the_recovery_point_passes_what_no_sync_has_covered() -> list[Patch]:
    def sealed_synced(self: Unsynced, sync: SealedSync, active: segment.Segment) -> Sequence[segment.Segment]:
        covered = real(self, sync, active)
        self.recovery_point = max(self.recovery_point, active.base_offset)
        return covered

    real = Unsynced.sealed_synced
    return [(Unsynced, "sealed_synced", sealed_synced)]


def _producers_are_as_old_as_their_records() -> list[Patch]:
    def record(self: ProducerStates, header: BatchHeader, base_offset: int, timestamp: int) -> ProducerEntry | None:
        return real(self, header, base_offset, header.max_timestamp)

    real = ProducerStates.record
    return [(ProducerStates, "record", record)]


def _records_without_a_time_are_the_oldest() -> list[Patch]:
    return [(segment.Segment, "largest_timestamp", property(lambda self: self.max_timestamp[0]))]


def _a_folder_does_not_say_durably_whose_it_is() -> list[Patch]:
    def run(self: AppendJob) -> None:
        self.marks = tuple(mark for mark in self.marks if mark[0].name != PARTITION_METADATA_FILE)
        real(self)

    def identify(self: LogManager, place: Any, topic_id: UUID, config: TopicConfig) -> None:
        entry = self.unidentified.pop(place)._replace(topic_id=topic_id, config=config)
        self._take_in(entry, self._opening.read(entry, clean=False))

    real = AppendJob.__call__
    return [(AppendJob, "__call__", run), (LogManager, "_identify", identify)]


def _leaderships_stay_where_the_disk_is_full() -> list[Patch]:
    def heartbeat(self: BrokerRegistry, image: Any, beat: Heartbeat, now_ms: int) -> Any:
        return real(self, image, beat._replace(takes_writes=True), now_ms)

    real = BrokerRegistry.heartbeat
    return [(BrokerRegistry, "heartbeat", heartbeat)]


def _who_cannot_write_keeps_its_lease() -> list[Patch]:
    async def heartbeat(self: BrokerLifecycle, **how: Any) -> Any:
        with patch.object(self._node.lease, "ended", lambda: None):
            return await real(self, **how)

    real = BrokerLifecycle._heartbeat
    return [(BrokerLifecycle, "_heartbeat", heartbeat)]


def _room_again_is_not_believed() -> list[Patch]:
    def note_disk(self: BrokerRegistry, node_id: int, *, takes_writes: bool) -> None:
        real(self, node_id, takes_writes=takes_writes and node_id not in self.unable)

    real = BrokerRegistry._note_disk
    return [(BrokerRegistry, "_note_disk", note_disk)]


def _failed_writes_are_acknowledged() -> list[Patch]:
    def failed(self: Writes, event: Any) -> Sequence[Any]:
        results = {batch.token: batch.result for batch in self._pending}
        return [
            Reply(effect.token, results[effect.token])
            if isinstance(effect, Reply) and effect.token in results
            else effect
            for effect in real(self, event)
        ]

    real = Writes.failed
    return [(Writes, "failed", failed)]


MUTATIONS = named(
    _acknowledges_before_the_followers,
    _goes_on_without_enough_in_sync,
    _the_leader_shrinks_the_isr_by_itself,
    _lets_followers_in_too_early,
    _followers_do_not_sync,
    _acknowledges_before_fsync,
    _leader_does_not_look_for_divergence,
    _epochs_end_where_the_log_does,
    _follower_truncates_in_memory_only,
    _a_deposed_leader_goes_on,
    _elects_from_outside_the_isr,
    _fenced_brokers_join_the_isr,
    _an_empty_disk_is_taken_for_the_old_one,
    _power_cuts_are_taken_for_clean_stops,
    _followers_forget_producers,
    _takes_repeated_batches,
    _answers_repeats_at_once,
    _followers_believe_their_own_end,
    _reads_open_transactions,
    _does_not_name_aborted_transactions,
    _markers_end_no_transaction_on_followers,
    _group_offsets_are_not_replayed,
    _transactions_are_not_replayed,
    _decided_transactions_are_not_finished,
    _coordinators_load_what_is_committed_by_then,
    _no_lease,
    _who_is_being_fenced_is_told_that_it_is_not,
    _who_was_replaced_keeps_its_lease,
    _does_not_report_losses,
    _any_member_may_commit,
    _who_is_no_longer_a_member_may_commit,
    _partitions_are_handed_over_before_they_are_given_up,
    _members_of_consumer_groups_never_expire,
    _zombies_are_not_fenced,
    _transactions_need_not_be_open,
    _does_not_check_what_it_recovers,
    _the_recovery_point_passes_what_no_sync_has_covered,
    _producers_are_as_old_as_their_records,
    _records_without_a_time_are_the_oldest,
    _a_folder_does_not_say_durably_whose_it_is,
    _leaderships_stay_where_the_disk_is_full,
    _who_cannot_write_keeps_its_lease,
    _room_again_is_not_believed,
    _failed_writes_are_acknowledged,
)

if __name__ == "__main__":
    sys.exit(tell("python tests/sim/cluster_mutations.py", MUTATIONS, make_cluster, seeds_max=100))
