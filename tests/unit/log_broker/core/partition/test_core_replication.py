"""A leader's view of its followers: who is in sync, what the controller is asked, how far the watermark goes."""

import pytest

from log_broker.core.partition.epochs import LeaderEpochs
from log_broker.core.partition.replication import RETRY_MS, Leadership, Leading
from log_broker.core.raft.lease import Lease
from log_broker.errors import ErrorCode

LAG = 1_000


def leading(
    isr: tuple[int, ...] = (1, 2, 3), *, epoch_start: int = 10, replicas: tuple[int, ...] = (1, 2, 3)
) -> Leading:
    return Leading(1, led(isr, 1, replicas), epoch_start=epoch_start, lag_ms_max=LAG, now_ms=0)


def led(isr: tuple[int, ...], version: int, replicas: tuple[int, ...] = (1, 2, 3), *, epoch: int = 5) -> Leadership:
    return Leadership(leader_epoch=epoch, partition_epoch=version, replicas=replicas, isr=isr)


def fetch(state: Leading, node: int, offset: int, *, end: int, now: int, broker_epoch: int = 7) -> bool:
    return state.fetched(node, broker_epoch, offset, 0, leader_end=end, now_ms=now)


def test_the_watermark_is_the_least_end_of_the_in_sync() -> None:
    state = leading()
    assert state.watermark(20) == -1, "nobody has fetched from this leader yet"
    fetch(state, 2, 15, end=20, now=1)
    fetch(state, 3, 12, end=20, now=1)
    assert state.watermark(20) == 12
    assert state.watermark(11) == 11, "the leader's own disk counts too"
    assert not fetch(state, 4, 20, end=20, now=1), "no replica"
    assert not fetch(state, 2, 21, end=20, now=1), "more than there is"


def test_a_fetch_of_an_earlier_life_counts_for_nothing() -> None:
    state = leading()
    fetch(state, 2, 12, end=20, now=1, broker_epoch=8)
    assert not fetch(state, 2, 20, end=20, now=2, broker_epoch=7)
    assert state.followers[2].end == 12


def test_who_lags_is_proposed_to_leave_and_counts_until_that_is_settled() -> None:
    state = leading()
    fetch(state, 2, 20, end=20, now=500)
    fetch(state, 3, 20, end=20, now=10)
    fetch(state, 2, 20, end=30, now=900)
    assert state.wanted(20, 30, 1_009) is None
    assert state.next_deadline_ms() <= 1_011
    state.check(30, 1_011)
    proposal = state.wanted(20, 30, 1_011)
    assert proposal is not None
    assert (proposal.isr, proposal.broker_epochs) == ((1, 2), (-1, 7))
    fetch(state, 2, 30, end=30, now=1_012)
    assert state.watermark(30) == 20, "3 may still be in the ISR"
    assert state.wanted(20, 30, 1_013) is None, "one at a time"
    assert not state.settled(led((1, 2), 1), 1_014), "the version that is known"
    assert not state.settled(led((1, 2), 2, epoch=4), 1_014), "of another epoch"
    assert state.settled(led((1, 2), 2), 1_014)
    assert state.watermark(30) == 30
    assert state.isr == (1, 2)


@pytest.mark.parametrize("lag", [1_000, 10_000])
def test_the_time_until_one_is_put_out_is_the_one_that_is_set(lag: int) -> None:
    state = Leading(1, led((1, 2, 3), 1), epoch_start=0, lag_ms_max=lag, now_ms=0)
    now = 0
    while now < 700:
        now += 10
        for node in (2, 3):
            fetch(state, node, now, end=now, now=now)
    stopped = now
    while state.wanted(now, now, now) is None:
        now = max(state.next_deadline_ms(), now + 1)
        fetch(state, 2, now, end=now, now=now)
        state.check(now, now)
    assert lag < now - stopped <= lag + lag // 4
    assert state.proposal is not None
    assert state.proposal.isr == (1, 2)


def test_following_slowly_but_steadily_is_no_lag() -> None:
    state = leading()
    end = 20
    for now in range(0, 5_000, 400):
        # Never at the end, but each time where the leader was the time before.
        fetch(state, 2, end - 10, end=end, now=now)
        fetch(state, 3, end, end=end, now=now)
        state.check(end, now)
        assert state.wanted(10, end, now) is None
        end += 10


@pytest.mark.parametrize(("offset", "joins"), [(9, False), (14, False), (15, True), (20, True)])
def test_who_has_reached_watermark_and_epoch_joins(offset: int, joins: bool) -> None:
    state = leading((1, 2), epoch_start=10)
    fetch(state, 2, 20, end=20, now=1)
    fetch(state, 3, offset, end=20, now=1)
    assert state.joins_at(3)
    assert not state.joins_at(2)
    proposal = state.wanted(15, 20, 1)
    assert (proposal is not None) is joins
    late = leading((1, 2), epoch_start=18)
    fetch(late, 3, 16, end=20, now=1)
    assert late.wanted(15, 20, 1) is None, "not in this epoch yet"


def test_the_watermark_waits_for_one_that_keeps_up_until_it_does_not() -> None:
    state = leading((1,), replicas=(1, 2))
    assert not state.waits_for_followers
    fetch(state, 2, 20, end=20, now=100)
    assert state.waits_for_followers
    assert state.watermark(30) == 20
    state.check(30, 100 + LAG)
    assert state.watermark(30) == 20
    state.check(30, 101 + LAG)
    assert state.watermark(30) == 30
    assert not state.waits_for_followers


def test_one_that_the_controller_puts_out_must_show_again_that_it_keeps_up() -> None:
    state = leading()
    for node in (2, 3):
        fetch(state, node, 20, end=20, now=100)
    assert state.settled(led((1, 2), 2), 110)
    fetch(state, 2, 30, end=30, now=120)
    assert state.watermark(30) == 30, "3, which may be dead, is not waited for"
    fetch(state, 3, 25, end=30, now=130)
    assert state.watermark(30) == 30
    fetch(state, 3, 30, end=30, now=140)
    assert state.watermark(40) == 30


def test_a_smaller_isr_that_was_refused_is_not_asked_for_at_once() -> None:
    state = leading((1, 2, 3))
    now = LAG + 2
    fetch(state, 2, 30, end=30, now=now)
    assert state.wanted(20, 30, now) is not None, "3 is silent"
    state.refused(ErrorCode.OPERATION_NOT_ATTEMPTED, now)
    for later in range(now, now + RETRY_MS, 100):
        fetch(state, 2, 30, end=30, now=later)
        assert state.wanted(20, 30, later) is None
    assert state.next_deadline_ms() <= now + RETRY_MS
    fetch(state, 2, 30, end=30, now=now + RETRY_MS)
    again = state.wanted(20, 30, now + RETRY_MS)
    assert again is not None
    assert again.isr == (1, 2)


@pytest.mark.parametrize("error", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED])
def test_what_the_controller_did_not_do_is_forgotten_and_tried_later(error: ErrorCode) -> None:
    state = leading((1, 2))
    fetch(state, 2, 30, end=30, now=1)
    fetch(state, 3, 20, end=30, now=1)
    assert state.wanted(20, 30, 1) is not None
    assert state.watermark(30) == 20
    state.refused(error, 2)
    assert state.watermark(30) == 30
    assert state.wanted(20, 30, 3) is None
    fetch(state, 3, 30, end=30, now=2 + RETRY_MS)
    assert state.wanted(20, 30, 2 + RETRY_MS) is not None


@pytest.mark.parametrize(
    "error", [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER, ErrorCode.FENCED_LEADER_EPOCH]
)
def test_what_may_have_been_done_counts_and_is_asked_again(error: ErrorCode) -> None:
    state = leading((1, 2))
    fetch(state, 2, 30, end=30, now=1)
    fetch(state, 3, 20, end=30, now=1)
    proposal = state.wanted(20, 30, 1)
    state.refused(error, 2)
    assert state.watermark(30) == 20
    assert state.wanted(20, 30, 3) is None
    assert state.next_deadline_ms() <= 2 + RETRY_MS
    assert state.wanted(20, 30, 2 + RETRY_MS) is proposal


def test_too_few_in_sync_is_measured_by_what_there_could_be() -> None:
    assert leading((1,)).lacks_replicas(2)
    assert not leading((1, 2)).lacks_replicas(2)
    assert not leading((1,)).lacks_replicas(1)
    assert not leading((1, 2), replicas=(1, 2)).lacks_replicas(3), "two are all there are"


def test_replicas_come_and_go_while_it_leads() -> None:
    state = leading()
    for node in (2, 3):
        fetch(state, node, 20, end=20, now=1)
    state.settled(led((1, 2), 2, (1, 2, 4)), 5)
    assert set(state.followers) == {2, 4}
    assert state.watermark(20) == 20
    assert not fetch(state, 3, 20, end=20, now=6)
    assert fetch(state, 4, 0, end=20, now=6)


def test_a_lease_ends_before_the_session_can() -> None:
    now = 0
    lease = Lease(lambda: now, session_timeout_ms=9_000)
    assert not lease.valid, "nobody has said yet that this broker is not fenced"
    lease.renewed(1_000)
    now = 9_099
    assert lease.valid
    now = 9_100
    assert not lease.valid
    lease.renewed(2_000)
    lease.renewed(500)
    assert lease.valid, "an answer that comes late takes nothing away"
    lease.ended()
    assert not lease.valid


def test_an_epoch_from_before_all_that_are_known_ended_where_they_begin() -> None:
    epochs = LeaderEpochs([(5, 100), (7, 120)])
    assert epochs.end_offset(3, 150) == (3, 100)
    assert epochs.end_offset(6, 150) == (5, 120)
    assert epochs.end_offset(7, 150) == (7, 150)
    assert epochs.end_offset(8, 150) == (-1, -1)
