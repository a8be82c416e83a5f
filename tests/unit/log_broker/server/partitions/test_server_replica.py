"""Replicas on several nodes: what is copied, what is acknowledged when, and what a new leader makes of it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from replica_pair import DATA, NOW_MS, ReplicaNode, catch_up, config, fetch_once, restart_at, truncate

from log_broker.core.partition.replication import IsrProposal, Leadership
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records import build_batch
from log_broker.records.control import EndMarker
from log_broker.storage.checkpoints import HIGH_WATERMARK_FILE, decode_offsets

Nodes = Callable[..., list[ReplicaNode]]


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    """Make nodes 1, 2, 3… with a partition of one config; they are closed in the end."""
    made: list[ReplicaNode] = []

    def make(count: int = 3, *, lag_ms_max: int = 30_000, **overrides: str) -> list[ReplicaNode]:
        made.extend(ReplicaNode(id_, config(**overrides), lag_ms_max=lag_ms_max) for id_ in range(1, count + 1))
        return made

    yield make
    for node in made:
        await node.logs.close()


async def test_a_record_is_acked_and_seen_once_every_in_sync_replica_has_it(nodes: Nodes) -> None:
    a, b, c = nodes(min_insync_replicas="2")
    a.lead(5, isr=(1, 2, 3))
    for node in (b, c):
        node.runtime.role.become_follower(5, 1)
    answer = a.produce(b"x")
    await a.written(1)
    await fetch_once(a, b)
    await fetch_once(a, c)
    await fetch_once(a, b)
    assert not answer.done()
    assert a.values() == [], "a reader sees nothing that c has not said to have"
    await fetch_once(a, c)
    assert (await answer).error is ErrorCode.NONE
    assert a.values() == [b"x"]
    await catch_up(a, b, c)
    assert a.log() == b.log() == c.log()
    assert b.values() == [b"x"]


async def test_an_ex_leader_drops_its_tail_and_takes_that_of_the_new_leader(nodes: Nodes) -> None:
    a, b, c = nodes(min_insync_replicas="2")
    a.lead(1, isr=(1, 2, 3))
    for node in (b, c):
        node.runtime.role.become_follower(1, 1)
    a.lease.renewed(0)
    committed = a.produce(b"both")
    await a.written(1)
    await catch_up(a, b, c)
    await committed
    for at in range(5):
        assert (await a.produce(b"only a %d" % at, acks=1)).error is ErrorCode.NONE
    undecided = a.produce(b"in doubt")
    await a.written(7)

    await a.power_cut()
    b.lead(2, isr=(2, 3))
    b.lease.renewed(0)
    c.runtime.role.become_follower(2, 2)
    for at in range(7):
        await b.produce(b"b %d" % at, acks=1)
    assert a.runtime.high_watermark <= 1, "nothing behind the last known high watermark counts after a restart"
    a.runtime.role.become_follower(2, 2)
    read = await fetch_once(b, a)
    assert read.diverging == (1, 1)
    assert a.runtime.log_end_offset == 1
    await catch_up(b, a, c)

    assert a.log() == b.log() == c.log()
    assert a.values() == [b"both", *(b"b %d" % at for at in range(7))]
    assert (await undecided).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_who_is_no_leader_any_more_says_so_to_all_who_wait(nodes: Nodes) -> None:
    a, b, _ = nodes(min_insync_replicas="1")
    a.lead(1, isr=(1, 2, 3))
    a.lease.renewed(0)
    written = [a.produce(b"w%d" % at) for at in range(2)]
    await a.written(2)
    gathered = [a.produce(b"g"), a.produce(b"h", acks=1)]
    a.runtime.role.become_follower(2, 2)
    results = await asyncio.gather(*written, *gathered, a.produce(b"late"))
    assert {result.error for result in results} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    with pytest.raises(BrokerError) as refusal:
        await a.runtime.own_appends.records([(b"k", b"v")])
    assert refusal.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert a.runtime.log_end_offset == 2
    assert b.runtime.leading.read_replica(0, 100, -1).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_truncation_says_what_was_lost(nodes: Nodes) -> None:
    a, _, _ = nodes(min_insync_replicas="1")
    a.lead(1, isr=(1,), replicas=(1, 2))
    a.lease.renewed(0)
    await a.produce(b"1", b"2", acks=1)
    a.lead(1, isr=(1, 2), replicas=(1, 2), version=2)
    await a.produce(b"3", b"4", acks=1)
    kept_waiting = a.produce(b"5")
    await a.written(5)
    a.runtime.role.become_follower(2, 2)
    assert await truncate(a, 9) is None
    assert await truncate(a, 1) == (0, 5, 2, 2), "the batch at 0 goes whole; 2 were committed, 2 acked by a alone"
    assert (await kept_waiting).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (a.runtime.log_end_offset, a.runtime.high_watermark, a.runtime.following.latest_epoch) == (0, 0, -1)


async def test_a_replica_says_what_goes_with_it_that_others_may_lack(nodes: Nodes) -> None:
    a, b = nodes(2, min_insync_replicas="1")
    a.lead(1, isr=(1, 2), replicas=(1, 2))
    b.runtime.role.become_follower(1, 1)
    a.lease.renewed(0)
    shared = a.produce(b"1", b"2")
    await a.written(2)
    await catch_up(a, b)
    await shared
    assert (a.runtime.following.left_behind(), b.runtime.following.left_behind()) == (None, None)
    await a.produce(b"3", b"4", acks=1)
    undecided = a.produce(b"5")
    await a.written(5)
    await a.settled()
    assert a.runtime.following.left_behind() == (2, 5, 0, 2), "two of three were acknowledged"
    b.lead(2, isr=(2,), replicas=(1, 2))
    a.runtime.role.become_follower(2, 2)
    assert (await undecided).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert a.runtime.following.left_behind() == (2, 5, 0, 2), "its leader has not been asked yet"
    await a.power_cut()
    left = a.runtime.following.left_behind()
    assert left is not None
    assert (left.end, left.acknowledged) == (5, None), "what an earlier process said nobody knows"
    a.runtime.role.become_follower(2, 2)
    await catch_up(b, a)
    assert a.runtime.following.left_behind() is None


async def test_offsets_that_a_power_cut_took_are_not_remembered_as_committed(nodes: Nodes) -> None:
    """They are given out again, and after a kill what stands there then would be taken for committed."""
    (a,) = nodes(1, fluvial_durability="memory", min_insync_replicas="1")
    a.lead(1, isr=(1,), replicas=(1, 2))
    await a.produce(b"1", b"2", b"3")
    a.logs.checkpoints._high_watermarks.saved = {("t", 0): 3}
    a.logs.checkpoints._high_watermarks.write()
    checkpoint = DATA / HIGH_WATERMARK_FILE
    a.files.sync_directory(DATA)  # the log is there afterwards, and its records are not
    await a.power_cut()
    assert (a.runtime.log_end_offset, a.runtime.high_watermark) == (0, 0)
    assert decode_offsets(a.files.read(checkpoint)) == {("t", 0): 0}


async def test_a_log_start_that_a_power_cut_took_hides_nothing_that_comes_after(nodes: Nodes) -> None:
    (a,) = nodes(1, fluvial_durability="memory", flush_messages="5", min_insync_replicas="1")
    a.lead(1, isr=(1,), replicas=(1, 2))
    await a.produce(*(b"%d" % value for value in range(5)))
    await a.produce(b"5", b"6", b"7", b"8")
    a.runtime.keeping.delete_records(8)
    await a.logs.checkpoints.keep_log_starts()
    await a.power_cut()
    assert (a.runtime.log_start_offset, a.runtime.log_end_offset) == (5, 5)
    a.lead(2, isr=(1,), replicas=(1, 2))
    await a.produce(b"five", b"six", b"seven", b"eight")
    before = a.logs
    a.open()  # as after a kill
    assert a.runtime.log_start_offset == 5
    a.lead(3, isr=(1,), replicas=(1, 2))
    assert a.values() == [b"five", b"six", b"seven", b"eight"]
    await before.close()


async def test_a_follower_below_the_leaders_start_begins_again_there(nodes: Nodes) -> None:
    a, b = nodes(2, segment_bytes="200")
    a.lead(1, isr=(1,), replicas=(1, 2))
    b.runtime.role.become_follower(1, 1)
    for at in range(8):
        await a.produce(b"%d" % at)
    await fetch_once(a, b, max_bytes=100)
    assert 0 < b.runtime.log_end_offset < 5
    a.runtime.keeping.delete_records(5)
    read = await fetch_once(a, b)
    assert read.error is ErrorCode.OFFSET_OUT_OF_RANGE
    await catch_up(a, b)
    assert (b.runtime.log_start_offset, b.runtime.log_end_offset) == (5, 8)
    assert b.values() == a.values() == [b"5", b"6", b"7"]
    await b.power_cut()
    assert (b.runtime.log_start_offset, b.runtime.log_end_offset) == (5, 8)


async def test_followers_that_fall_behind_leave_and_come_back(nodes: Nodes) -> None:
    a, b, c = nodes(min_insync_replicas="2", lag_ms_max=500)
    wanted: asyncio.Queue[IsrProposal] = asyncio.Queue()
    a.runtime.replica.on_isr_wanted = wanted.put_nowait
    a.lead(1, isr=(1, 2, 3))
    for node in (b, c):
        node.runtime.role.become_follower(1, 1)
    answer = a.produce(b"x")

    async def b_fetches() -> IsrProposal:
        while wanted.empty():
            await fetch_once(a, b)
            await asyncio.sleep(0.005)
        return wanted.get_nowait()

    proposal = await b_fetches()
    assert (proposal.isr, proposal.leader_epoch, proposal.partition_epoch) == ((1, 2), 1, 1)
    assert not answer.done(), "until the controller has agreed c counts"
    a.runtime.role.isr_settled(Leadership(leader_epoch=1, partition_epoch=2, replicas=(1, 2, 3), isr=(1, 2)))
    assert (await answer).error is ErrorCode.NONE
    assert a.runtime.leading.isr == (1, 2)

    await fetch_once(a, c)
    while wanted.empty():
        await fetch_once(a, b)
        await fetch_once(a, c)
    proposal = wanted.get_nowait()
    assert (proposal.isr, proposal.partition_epoch, proposal.broker_epochs) == ((1, 2, 3), 2, (-1, 1, 1))


async def test_a_leader_without_its_lease_takes_only_what_others_confirm(nodes: Nodes) -> None:
    a, b, _ = nodes(min_insync_replicas="1")
    a.lead(1, isr=(1, 2))
    b.runtime.role.become_follower(1, 1)
    assert (await a.produce(b"x", acks=1)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    a.lease.renewed(1_000)
    assert (await a.produce(b"x", acks=1)).error is ErrorCode.NONE
    assert (await a.produce(b"x", acks=0)).error is ErrorCode.NONE
    a.lease_ms = 9_101
    assert (await a.produce(b"x", acks=0)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    answer = a.produce(b"all")
    await asyncio.sleep(0)
    while not answer.done():
        await fetch_once(a, b)
    assert (await answer).error is ErrorCode.NONE


@pytest.mark.parametrize("leave", ["delete", "close"])
async def test_a_log_may_go_away_while_it_is_cut(nodes: Nodes, leave: str) -> None:
    a, _, _ = nodes()
    a.lead(1, isr=(1,), replicas=(1,))
    await a.produce(b"1")
    a.runtime.role.become_follower(2, 2)
    cut = asyncio.create_task(truncate(a, 0))
    await asyncio.sleep(0)
    if leave == "delete":
        a.logs.delete("t", 0)
        a.logs.create("t", 0, a.runtime.topic_id, a.topic)
    await a.logs.close()
    await cut


async def test_a_wrong_fetch_is_refused_whole(nodes: Nodes) -> None:
    a, b, _ = nodes()
    a.lead(3, isr=(1, 2))
    a.lease.renewed(0)
    await a.produce(b"1", acks=1)
    b.runtime.role.become_follower(3, 1)
    good = b"".join(a.runtime.leading.read_replica(0, 1000, -1).chunks)

    async def error_of(records: bytes, epoch: int = 3) -> ErrorCode | None:
        answer: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()
        b.runtime.following.append_fetched(memoryview(records), epoch, 0, 0, lambda error, _: answer.set_result(error))
        error = await answer
        return None if error is None else error.code

    assert await error_of(good, epoch=2) is ErrorCode.FENCED_LEADER_EPOCH
    assert await error_of(good, epoch=4) is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert await error_of(good[:-1] + b"!") is ErrorCode.CORRUPT_MESSAGE
    assert await error_of(good[:12] + b"\0\0\0\x09" + good[16:]) is ErrorCode.CORRUPT_MESSAGE, "an epoch to come"
    assert b.runtime.log_end_offset == 0
    assert await error_of(good + good[:40]) is None, "what is cut short at the end is left out"
    assert await error_of(good) is ErrorCode.CORRUPT_MESSAGE, "it is there already"
    assert b.runtime.log_end_offset == 1


async def test_gaps_left_by_compaction_are_copied_and_survive_a_crash(nodes: Nodes) -> None:
    a, b = nodes(2, cleanup_policy="compact", segment_bytes="250", min_cleanable_dirty_ratio="0")
    a.lead(1, isr=(1,), replicas=(1, 2))
    for at in range(12):
        await a.produce(b"%d" % at)
    await a.logs.compact()
    b.runtime.role.become_follower(1, 1)
    await catch_up(a, b)
    assert a.values() == b.values()
    assert len(b.values()) < 12
    await b.power_cut()
    assert b.runtime.log_end_offset == 12
    b.runtime.role.become_follower(1, 1)
    await catch_up(a, b)
    assert a.values() == b.values()


def begin(node: ReplicaNode, producer: int, value: bytes) -> "asyncio.Future[object]":
    """Write the first batch of a transaction."""
    node.runtime.transactions.expect(producer, 0, 0)
    node.runtime.transactions.allow(producer, 0)
    answer = node.produce(value, acks=1, producer_id=producer, producer_epoch=0, base_sequence=0, attributes=0x10)
    node.runtime.transactions.answered(producer)
    return answer


@pytest.mark.parametrize("is_ended", [False, True])
async def test_a_cut_that_the_disk_refuses_decides_no_transaction(nodes: Nodes, is_ended: bool) -> None:
    a, b = nodes(2)
    a.lead(1, isr=(1, 2), replicas=(1, 2))
    b.runtime.role.become_follower(1, 1)
    a.lease.renewed(0)
    await begin(a, 7, b"open")
    await catch_up(a, b)
    # What only this leader has: the next one may end the transaction otherwise.
    if is_ended:
        ended: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        a.runtime.own_appends.end_transaction(7, 0, EndMarker(True, 4), ended.set_result)
    else:
        a.produce(b"tail", acks=1)
    await a.written(2)
    a.runtime.role.become_follower(2, 2)
    a.files.failing_syncs = 1
    await truncate(a, 1)
    assert a.runtime.offline_reason is not None
    assert (a.runtime.high_watermark, a.runtime.last_stable_offset) == (1, 0)
    assert (a.values(), a.values(committed=True)) == ([b"open"], [])
    assert a.logs.reopen_offline() == 1
    assert a.runtime.last_stable_offset == 0


async def test_transactions_follow_and_are_right_with_a_new_leader(nodes: Nodes) -> None:
    a, b = nodes(2, min_insync_replicas="1")
    a.lead(1, isr=(1, 2), replicas=(1, 2))
    b.runtime.role.become_follower(1, 1)
    a.lease.renewed(0)

    for producer in (7, 8, 9):
        await begin(a, producer, b"p%d" % producer)
    await catch_up(a, b)
    ends: list[asyncio.Future[object]] = []
    for producer, committed in ((7, True), (8, False)):
        ended: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        a.runtime.own_appends.end_transaction(producer, 0, EndMarker(committed, 4), ended.set_result)
        ends.append(ended)
    await a.written(5)
    await fetch_once(a, b)
    assert b.runtime.log_end_offset == 5
    assert (b.runtime.high_watermark, b.runtime.last_stable_offset) == (3, 0), "7's end is not committed yet"
    assert b.values(committed=True) == []

    await b.restart()
    assert (b.runtime.high_watermark, b.runtime.last_stable_offset) == (3, 0), "and is not after a restart either"
    b.lead(2, isr=(2,), replicas=(1, 2))
    assert b.runtime.last_stable_offset == 2, "9 is open"
    assert b.values(committed=True) == [b"p7", b"p8"], "8's are for the client to leave out"
    assert b.runtime.read(0, 1000, isolation_level=1).aborted == [(8, 1)]
    last: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    b.runtime.own_appends.end_transaction(9, 0, EndMarker(True, 3), last.set_result)
    await last
    assert b.runtime.last_stable_offset == 6
    refused: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    b.runtime.own_appends.end_transaction(7, 0, EndMarker(False, 3), refused.set_result)
    assert (await refused).error is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    repeated = b.produce(b"p7", producer_id=7, producer_epoch=0, base_sequence=0, attributes=0x10)
    assert (await repeated).base_offset == 0, "sequences are known too"


async def test_a_repeated_batch_waits_for_the_others_as_the_first_did(nodes: Nodes) -> None:
    a, b = nodes(2, min_insync_replicas="1")
    a.lead(1, isr=(1, 2), replicas=(1, 2))
    b.runtime.role.become_follower(1, 1)
    sent = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    first = a.produce(b"x", **sent)
    await a.written(1)
    again = a.produce(b"x", **sent)
    await asyncio.sleep(0)
    assert not again.done()
    await catch_up(a, b)
    assert (await first).base_offset == (await again).base_offset == 0


async def test_acks_all_needs_enough_replicas_before_and_after(nodes: Nodes) -> None:
    a, b, _ = nodes(min_insync_replicas="2")
    a.lead(1, isr=(1, 2))
    b.runtime.role.become_follower(1, 1)
    enough = a.produce(b"w")
    await a.written(1)
    await catch_up(a, b)
    assert (await enough).error is ErrorCode.NONE
    answer = a.produce(b"x")
    await a.written(2)
    a.runtime.role.isr_settled(Leadership(leader_epoch=1, partition_epoch=2, replicas=(1, 2, 3), isr=(1,)))
    assert (await answer).error is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert (await a.produce(b"y")).error is ErrorCode.NOT_ENOUGH_REPLICAS

    assert a.runtime.high_watermark == 1, "with too few in sync nothing more is committed"
    assert a.runtime.log_end_offset == 2


@pytest.mark.parametrize("least", [1, 2, 3])
async def test_so_many_disks_hold_a_record_when_it_is_acked(nodes: Nodes, least: int) -> None:
    made = nodes(min_insync_replicas=str(least))
    leader, *followers = made
    leader.lead(1, isr=(1, 2, 3)[:least])
    for node in followers:
        node.runtime.role.become_follower(1, 1)
    copies: list[int] = []

    def count(_: object) -> None:
        disks = [node.files.crash().read(DATA / "t-0" / "00000000000000000000.log") for node in made]
        copies.append(sum(b"on how many disks" in (disk or b"") for disk in disks))

    leader.runtime.append(build_batch([(NOW_MS, b"k", b"on how many disks", ())]), acks=-1, done=count)
    await leader.written(1)
    await catch_up(leader, *followers[: least - 1])
    assert copies == [least]


async def test_replicas_that_are_only_being_added_are_not_asked_for(nodes: Nodes) -> None:
    a, _, _ = nodes(min_insync_replicas="2")
    a.runtime.role.become_leader(
        Leadership(leader_epoch=1, partition_epoch=1, replicas=(1, 2, 3), isr=(1,), adding=(2, 3)),
    )
    assert (await a.produce(b"x")).error is ErrorCode.NONE
    a.runtime.role.isr_settled(Leadership(leader_epoch=1, partition_epoch=2, replicas=(1, 2, 3), isr=(1,)))
    assert (await a.produce(b"y")).error is ErrorCode.NOT_ENOUGH_REPLICAS


async def test_waiting_fetches_are_woken(nodes: Nodes) -> None:
    a, b = nodes(2)
    a.lead(1, isr=(1, 2), replicas=(1, 2))
    b.runtime.role.become_follower(1, 1)
    woken: list[str] = []
    a.runtime.leading.on_appended(0, lambda: woken.append("end"))
    a.runtime.leading.on_appended(5, lambda: woken.append("watermark"), known_high_watermark=0)
    gone = a.runtime.leading.on_appended(0, lambda: woken.append("cancelled"))
    gone()
    a.produce(b"x")
    await a.written(1)
    await asyncio.sleep(0)
    assert woken == ["end"]
    await catch_up(a, b)
    await asyncio.sleep(0)
    assert woken == ["end", "watermark"]
    a.runtime.leading.on_appended(9, lambda: woken.append("gone"))
    a.runtime.role.become_follower(2, 2)
    await asyncio.sleep(0)
    assert woken[-1] == "gone"


async def test_a_cut_log_takes_what_comes_next(nodes: Nodes) -> None:
    a, b = nodes(2, segment_bytes="200")
    a.lead(1, isr=(1,), replicas=(1, 2))
    for at in range(9):
        await a.produce(b"%d" % at, producer_id=7, producer_epoch=0, base_sequence=at)
    b.runtime.role.become_follower(1, 1)
    await catch_up(a, b)
    await truncate(b, 4)
    assert b.runtime.log_end_offset == b.runtime.high_watermark == 4
    assert b.runtime.producers[7].batches[-1].last_sequence == 3
    await b.power_cut()
    assert b.runtime.log_end_offset == 4
    b.runtime.role.become_follower(1, 1)
    await catch_up(a, b)
    assert a.values() == b.values()
    assert a.log() == b.log()
    await restart_at(b, 100)
    assert (b.runtime.log_start_offset, b.runtime.log_end_offset, b.runtime.high_watermark) == (100, 100, 100)
    assert len(b.runtime.producers) == 0


async def test_who_waits_for_followers_is_answered_when_the_node_stops(nodes: Nodes) -> None:
    a, _ = nodes(2)
    a.lead(1, isr=(1, 2), replicas=(1, 2))
    answer = a.produce(b"x")
    await a.written(1)
    await a.logs.close()
    assert (await answer).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_log_that_was_compacted_is_compacted_again_after_a_cut(nodes: Nodes) -> None:
    a, b = nodes(2, cleanup_policy="compact", segment_bytes="250", min_cleanable_dirty_ratio="0")
    a.lead(1, isr=(1,), replicas=(1, 2))
    for at in range(12):
        await a.produce(b"%d" % at)
    b.runtime.role.become_follower(1, 1)
    await catch_up(a, b)
    assert await b.logs.compact() == 1
    await truncate(b, 4)
    await catch_up(a, b)
    assert len(b.values()) > 4
    assert await b.logs.compact() == 1
    assert len(b.values()) < 6
    assert b.values()[-1] == b"11"


@pytest.mark.parametrize("loses", [False, True])
async def test_a_leader_whose_disk_failed_leads_on_only_if_it_lost_nothing(nodes: Nodes, loses: bool) -> None:
    a, b = nodes(2, fluvial_durability="memory" if loses else "fsync-quorum")
    a.lead(1, isr=(1, 2), replicas=(1, 2))
    a.lease.renewed(0)
    b.runtime.role.become_follower(1, 1)
    await a.produce(b"1", acks=1)
    waiting = a.produce(b"2")
    await a.written(2)
    await a.settled()
    if loses:
        a.runtime.config = config(fluvial_durability="memory", flush_messages="1")
    a.files.failing_syncs = 1
    a.logs.disk.stop()  # no trial writes bring the log back before the test does
    assert (await a.produce(b"3", acks=1)).error is ErrorCode.KAFKA_STORAGE_ERROR
    a.runtime.replica.go_offline("a sync failed")
    assert a.logs.reopen_offline() == 1
    if loses:
        assert a.runtime.log_end_offset < 2
        assert (await waiting).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        a.lead(1, isr=(1, 2), replicas=(1, 2), version=2)
        assert not a.runtime.is_leader, "the same offsets must not be given out twice in one epoch"
        a.lead(2, isr=(1, 2), replicas=(1, 2), version=3)
        assert (await a.produce(b"4", acks=1)).error is ErrorCode.NONE
    else:
        assert a.runtime.is_leader
        await catch_up(a, b)
        assert (await waiting).error is ErrorCode.NONE


@contextmanager
def syncs_held(node: ReplicaNode) -> Iterator[None]:
    """Let no sync of a node's disk end within this block."""
    gate = threading.Event()
    with patch.object(node.files, "end_if_asked", lambda: gate.wait(10)):
        try:
            yield
        finally:
            gate.set()


async def pair_with_a_record(nodes: Nodes) -> list[ReplicaNode]:
    """Return a leader and its follower, both in sync, after the first record of the epoch."""
    a, b = nodes(2, min_insync_replicas="2")
    a.lead(1, isr=(1, 2), replicas=(1, 2))
    a.lease.renewed(0)
    b.runtime.role.become_follower(1, 1)
    first = a.produce(b"first")
    await a.written(1)
    await catch_up(a, b)
    await first
    return [a, b]


async def test_followers_may_hold_what_the_leaders_disk_has_yet_to_confirm(nodes: Nodes) -> None:
    a, b = await pair_with_a_record(nodes)
    numbered = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    with syncs_held(a):
        answer = a.produce(b"x", **numbered)
        await a.written(2)
        await fetch_once(a, b)
        read = await fetch_once(a, b)
        assert b.runtime.log_end_offset == 2
        assert (read.high_watermark, a.values(), answer.done()) == (1, [b"first"], False), "one disk is not enough"
        again = a.produce(b"x", acks=1, **numbered)
        await asyncio.sleep(0.01)
        assert not again.done(), "a repeated batch is answered no sooner than its first"
        assert a.runtime.keeping.at_risk().records == 0, "nobody was told of it"
    assert (await answer).error is ErrorCode.NONE
    assert (await again).error is ErrorCode.NONE
    await catch_up(a, b)
    assert a.values() == b.values() == [b"first", b"x"]


async def test_acks_1_is_answered_after_the_leaders_sync(nodes: Nodes) -> None:
    a, _ = await pair_with_a_record(nodes)
    with syncs_held(a):
        answers = [a.produce(b"x", acks=1), a.produce(b"y")]
        await asyncio.sleep(0.01)
        assert not any(answer.done() for answer in answers)
    assert (await answers[0]).error is ErrorCode.NONE


async def test_a_leader_that_cannot_sync_what_it_showed_leads_no_more_and_loses_nothing(nodes: Nodes) -> None:
    a, b = await pair_with_a_record(nodes)
    with syncs_held(a):
        answer = a.produce(b"x")
        await a.written(2)
        await fetch_once(a, b)
        a.files.failing_syncs = 1
        a.logs.disk.stop()
    await a.settled()
    assert "could not be written" in (a.runtime.offline_reason or "")
    assert (await a.produce(b"y")).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert not answer.done(), "it may be kept: who leads next says so"

    b.lead(2, isr=(1, 2), replicas=(1, 2))
    a.runtime.role.become_follower(2, 2)
    assert (await answer).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await a.power_cut()
    a.runtime.role.become_follower(2, 2)
    await catch_up(b, a)
    assert a.values() == b.values() == [b"first", b"x"]


async def test_the_last_known_watermark_survives(nodes: Nodes) -> None:
    a, b = nodes(2)
    a.lead(1, isr=(1, 2), replicas=(1, 2))
    b.runtime.role.become_follower(1, 1)
    first = a.produce(b"1")
    await a.written(1)
    await catch_up(a, b)
    await first
    second = a.produce(b"2")
    await a.written(2)
    await fetch_once(a, b)
    for node in (a, b):
        await node.restart()
        assert (node.runtime.high_watermark, node.runtime.log_end_offset) == (1, 2)
        assert node.values() == [b"1"]
        assert not node.runtime.is_leader
    assert (await second).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_follower_forgets_what_a_leader_of_before_had_committed(nodes: Nodes) -> None:
    """That may be lost, by a power cut of logs that are not synced, and then others stand in its place."""
    (b,) = nodes(1)
    b.runtime.role.become_follower(1, 2)

    async def fetched(values: list[bytes], base_offset: int, epoch: int, watermark: int) -> None:
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        records = build_batch(
            [(NOW_MS, None, value, ()) for value in values], base_offset=base_offset, leader_epoch=epoch
        )
        b.runtime.following.append_fetched(
            memoryview(records), epoch, watermark, 0, lambda error, _: answer.set_result(error)
        )
        await answer

    await fetched([b"a"], 0, 1, 3)
    assert b.runtime.high_watermark == 1
    b.runtime.role.become_follower(2, 3)
    await fetched([b"b", b"c", b"d"], 1, 2, 1)
    assert b.runtime.high_watermark == 1, "the leader of this epoch has committed no more"


async def test_what_was_allowed_before_it_led_is_not_allowed_any_more(nodes: Nodes) -> None:
    a, b = nodes(2)
    a.lead(1, isr=(1, 2), replicas=(1, 2))
    b.runtime.role.become_follower(1, 1)
    a.lease.renewed(0)
    # Its answer is late: the transaction is over by then, and its marker came from another leader.
    b.runtime.transactions.expect(7, 0, 0)
    ended: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    a.runtime.own_appends.end_transaction(7, 0, EndMarker(False, 4), ended.set_result)
    await a.written(1)
    await catch_up(a, b)
    b.lead(2, isr=(2,), replicas=(1, 2))
    b.lease.renewed(0)
    b.runtime.transactions.allow(7, 0)
    b.runtime.transactions.answered(7)
    answer = await b.produce(b"late", acks=1, producer_id=7, producer_epoch=0, base_sequence=0, attributes=0x10)
    assert answer.error is ErrorCode.INVALID_TXN_STATE
    assert b.values() == []
