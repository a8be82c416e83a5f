import pytest
from fetcher_pair import ModelLog, Pair, PatientPair
from hypothesis import given, settings
from hypothesis import strategies as st

from log_broker.core.fetch.quota import ReplicationQuota
from log_broker.core.fetch.replica_fetcher import (
    GATHER_MS,
    Appended,
    AppendFetched,
    Delayed,
    FetchAnswered,
    FetcherSettings,
    FetchFailed,
    Follow,
    LeaderAdvanced,
    ReplicaFetcher,
    RestartAt,
    SendFetch,
    Truncate,
    Unfollow,
    truncation_offset,
)
from log_broker.core.fetch.replica_messages import Diverging, ReplicaAnswer, ReplicaFetchResponse
from log_broker.errors import ErrorCode

A = (bytes(15) + b"a", 0)
B = (bytes(15) + b"b", 1)
SESSION = 77


def fetcher(**options: object) -> ReplicaFetcher:
    return ReplicaFetcher(2, FetcherSettings(**options), broker_epoch=9)  # type: ignore[arg-type]


def sent(effects: object) -> list[tuple[object, int]]:
    """What the requests among effects name: (place, offset)."""
    return [
        (part.place, part.offset)
        for effect in effects
        if isinstance(effect, SendFetch)  # type: ignore[attr-defined]
        for part in effect.request.partitions
    ]


def answered(*answers: ReplicaAnswer, session_id: int = SESSION) -> FetchAnswered:
    return FetchAnswered(ReplicaFetchResponse(answers, session_id))


def test_where_a_log_ends_is_told_once_nothing_is_being_written_to_it() -> None:
    """It led a moment ago, and its disk is not done with what it took in: that stays or goes as the new leader says."""
    machine, log = fetcher(), ModelLog([3] * 10, is_idle=False)
    assert sent(machine.handle(Follow(A, 4, log), 0)) == []
    log.records += [3] * 5
    log.is_idle = True
    deadline = machine.next_deadline_ms()
    assert deadline is not None
    assert sent(machine.tick(deadline)) == [(A, 15)]


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_whatever_goes_wrong_the_follower_ends_with_the_leaders_log(seed: int, partitions: int) -> None:
    pair = Pair(seed, partitions)
    for _ in range(400):
        pair.step()
    pair.settle()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 5))
def test_no_record_waits_for_a_leaders_patience_to_end(seed: int, partitions: int) -> None:
    pair = PatientPair(seed, partitions)
    for _ in range(6):
        for _ in range(pair.chance.randint(5, 100)):
            pair.step()
        pair.settle()


def test_the_request_that_opens_a_session_does_not_wait() -> None:
    """Nothing can be told before its answer: a partition that is followed a moment later would wait as long."""
    machine = fetcher()
    (opening,) = machine.handle(Follow(A, 0, ModelLog()), 0)
    assert machine.handle(Follow(B, 0, ModelLog()), 0) == []
    assert isinstance(opening, SendFetch)
    assert opening.request.wait_ms_max == 0
    (second,) = machine.handle(answered(), 1)
    assert isinstance(second, SendFetch)
    assert (second.request.wait_ms_max, sent([second])) == (500, [(B, 0)])


def test_without_sessions_requests_wait() -> None:
    machine = fetcher()
    machine.handle(Follow(A, 0, ModelLog()), 0)
    (whole,) = machine.handle(answered(session_id=0), 1)
    assert isinstance(whole, SendFetch)
    assert whole.request.wait_ms_max == 500


def test_a_request_names_the_state_of_the_log_and_later_ones_only_what_changed() -> None:
    machine = fetcher()
    log = ModelLog(records=[3, 3, 4], start=10)
    (first,) = machine.handle(Follow(A, 5, log), 0)
    assert isinstance(first, SendFetch)
    assert first.request[:7] == (2, 9, 0, 1, 10 << 20, 0, 0)
    assert first.request.partitions[0] == (A, 5, 13, 4, 10, 1 << 20)
    assert machine.handle(Follow(B, 1, ModelLog()), 0) == []  # the session is not open yet
    (second,) = machine.handle(answered(), 1)
    assert isinstance(second, SendFetch)
    assert second.request[5:7] == (SESSION, 1)
    assert sent([second]) == [(B, 0)]
    (third,) = machine.handle(answered(), 2)
    assert isinstance(third, SendFetch)
    assert (third.request.session_epoch, third.request.partitions) == (2, [])


def test_changes_ends_the_wait_of_a_request_and_a_third_one_waits() -> None:
    machine = fetcher()
    machine.handle(Follow(A, 0, ModelLog()), 0)
    machine.handle(answered(), 0)
    assert sent(machine.handle(Follow(B, 0, ModelLog()), 1)) == [(B, 0)]
    assert machine.handle(Unfollow(A), 2) == []
    (last,) = machine.handle(answered(), 3) or [None]
    assert last is None  # one request is still under way, and nothing is to be told but what was forgotten
    (poll,) = machine.handle(answered(), 4)
    assert isinstance(poll, SendFetch)
    assert poll.request.forgotten == (A,)


def test_records_are_appended_and_only_then_told_of() -> None:
    machine = fetcher()
    log = ModelLog()
    machine.handle(Follow(A, 0, log), 0)
    (append,) = machine.handle(answered(ReplicaAnswer(A, ErrorCode.NONE, 3, 4, 0, [b"ab", b"cd"])), 1)
    assert isinstance(append, AppendFetched)
    assert append.records == b"abcd"
    assert machine.lag_of(A) == 4
    log.records += [0] * 4
    assert sent(machine.handle(Appended(A, append.token), 5)) == [(A, 4)]


def test_a_slow_append_does_not_hold_up_the_others_for_long() -> None:
    machine = fetcher()
    machine.handle(Follow(A, 0, ModelLog()), 0)
    machine.handle(answered(), 0)
    machine.handle(Follow(B, 0, ModelLog()), 0)
    machine.handle(answered(), 0)
    effects = machine.handle(answered(ReplicaAnswer(A, ErrorCode.NONE, 0, 1, 0, [b"ab"])), 10)
    assert [type(effect) for effect in effects] == [AppendFetched]
    assert machine.next_deadline_ms() == 10 + GATHER_MS
    (poll,) = machine.tick(10 + GATHER_MS)
    assert isinstance(poll, SendFetch)


def test_a_broken_connection_is_retried_with_backoff_and_all_is_sent_again() -> None:
    machine = fetcher(backoff_ms_max=70)
    machine.handle(Follow(A, 0, ModelLog()), 0)
    now_ms = 0
    for delay_ms in (20, 40, 70, 70):
        assert machine.handle(FetchFailed(), now_ms) == []
        assert machine.next_deadline_ms() == now_ms + delay_ms
        now_ms += delay_ms
        assert sent(machine.tick(now_ms)) == [(A, 0)]


def test_an_answer_to_what_is_no_longer_asked_is_left_alone() -> None:
    machine = fetcher()
    machine.handle(Follow(A, 0, ModelLog()), 0)
    machine.handle(answered(), 0)
    machine.handle(Follow(A, 1, ModelLog()), 1)  # named again in the second request
    assert machine.handle(answered(ReplicaAnswer(A, ErrorCode.NONE, 0, 1, 0, [b"ab"])), 2) == []
    machine.handle(Unfollow(A), 3)
    assert machine.handle(answered(ReplicaAnswer(A, ErrorCode.NONE, 0, 1, 0, [b"ab"])), 4) == []
    assert len(machine) == 0
    assert machine.next_deadline_ms() is None


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_OUT_OF_RANGE,  # without saying where the leader's log starts
        ErrorCode.UNKNOWN_TOPIC_ID,
    ],
)
def test_a_refused_partition_is_delayed_and_the_others_go_on(error: ErrorCode) -> None:
    machine = fetcher()
    machine.handle(Follow(A, 0, ModelLog()), 0)
    machine.handle(answered(), 0)
    machine.handle(Follow(B, 0, ModelLog()), 0)
    machine.handle(answered(), 0)
    delayed, poll = machine.handle(answered(ReplicaAnswer(A, error)), 1)
    assert delayed == Delayed(A, error, 20)
    assert sent([poll]) == []
    assert sent(machine.tick(21)) == [(A, 0)]


def test_a_replica_that_lies_behind_the_leaders_start_begins_again() -> None:
    machine = fetcher()
    log = ModelLog(records=[1] * 5)
    machine.handle(Follow(A, 2, log), 0)
    (restart,) = machine.handle(answered(ReplicaAnswer(A, ErrorCode.OFFSET_OUT_OF_RANGE, 9, 20, 8)), 1)
    assert restart == RestartAt(A, 1, 8)
    log.records, log.start = [], 8
    assert sent(machine.handle(Appended(A, 1), 2)) == [(A, 8)]


def test_a_replica_that_is_longer_than_the_leader_is_cut() -> None:
    machine = fetcher()
    machine.handle(Follow(A, 2, ModelLog(records=[1] * 5)), 0)
    (cut,) = machine.handle(answered(ReplicaAnswer(A, ErrorCode.OFFSET_OUT_OF_RANGE, 3, 3, 0)), 1)
    assert cut == Truncate(A, 1, 3, 2)


@pytest.mark.parametrize(
    ("own", "told", "offset"),
    [
        ([1] * 10 + [3] * 5, (2, 20), 10),  # the leader never had epoch 3, this log never had 2
        ([1] * 10 + [3] * 5, (3, 12), 12),
        ([1] * 10 + [3] * 5, (1, 7), 7),
        ([3] * 5, (1, 7), 0),  # nothing of this log is in the leader's
    ],
)
def test_where_a_divided_log_is_cut(own: list[int], told: tuple[int, int], offset: int) -> None:
    assert truncation_offset(ModelLog(records=own), Diverging(*told)) == offset


def test_a_divergence_that_leaves_nothing_to_cut_is_not_asked_again_at_once() -> None:
    machine = fetcher()
    machine.handle(Follow(A, 2, ModelLog(records=[1] * 5)), 0)
    (cut,) = machine.handle(answered(ReplicaAnswer(A, diverging=Diverging(1, 9))), 1)
    assert cut == Truncate(A, 1, 5, 2)  # of an epoch without records
    machine.handle(Appended(A, 1), 1)
    effects = machine.handle(answered(ReplicaAnswer(A, diverging=Diverging(1, 9))), 2)
    assert [type(effect) for effect in effects] == [Delayed]


def test_a_high_watermark_alone_is_passed_on() -> None:
    machine = fetcher()
    machine.handle(Follow(A, 2, ModelLog()), 0)
    advanced, _ = machine.handle(answered(ReplicaAnswer(A, ErrorCode.NONE, 7, -1, 1)), 1)
    assert advanced == LeaderAdvanced(A, 2, 7, 1)


def test_a_failed_append_is_fetched_again_later() -> None:
    machine = fetcher()
    machine.handle(Follow(A, 0, ModelLog()), 0)
    (append,) = machine.handle(answered(ReplicaAnswer(A, ErrorCode.NONE, 0, 1, 0, [b"ab"])), 1)
    assert isinstance(append, AppendFetched)
    effects = machine.handle(Appended(A, append.token, ErrorCode.CORRUPT_MESSAGE), 2)
    assert effects == [Delayed(A, ErrorCode.CORRUPT_MESSAGE, 20)]
    assert sent(machine.tick(22)) == [(A, 0)]


def test_a_lost_session_is_opened_again() -> None:
    machine = fetcher()
    machine.handle(Follow(A, 0, ModelLog()), 0)
    machine.handle(answered(), 0)
    lost = FetchAnswered(ReplicaFetchResponse([], error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
    assert machine.handle(lost, 1) == []
    (again,) = machine.tick(21)
    assert isinstance(again, SendFetch)
    assert (again.request[5:7], sent([again])) == ((0, 0), [(A, 0)])


def test_without_a_session_each_request_is_a_whole_one() -> None:
    machine = fetcher()
    machine.handle(Follow(A, 0, ModelLog()), 0)
    for now_ms in range(3):
        assert sent(machine.handle(answered(session_id=0), now_ms)) == [(A, 0)]


def test_a_throttled_replica_waits_for_its_rate_and_others_do_not() -> None:
    quota = ReplicationQuota(rate=100)
    machine = ReplicaFetcher(2, FetcherSettings(), quota=quota)
    log = ModelLog()
    machine.handle(Follow(A, 0, log, is_throttled=True), 0)
    (append,) = machine.handle(answered(ReplicaAnswer(A, ErrorCode.NONE, 0, 9, 0, [bytes(1101)])), 500)
    assert isinstance(append, AppendFetched)
    assert machine.handle(Appended(A, append.token), 600) == []
    assert sent(machine.handle(Follow(B, 0, ModelLog()), 700)) == [(B, 0)]
    assert machine.next_deadline_ms() == 11_000
    assert sent(machine.tick(11_000)) == [(A, 0)]
