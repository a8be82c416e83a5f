"""Fetch sessions: which requests continue one, what is read in it, what the client is told, who has to make room."""

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from log_broker.core.fetch import session as fetch_session
from log_broker.core.fetch.session import (
    EPOCH_MAX,
    EVICTABLE_AFTER_MS,
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    Continuing,
    FetchedPartition,
    FetchedTopic,
    FetchSessions,
    ForgottenTopic,
    Opening,
    Plan,
    Refused,
    Response,
    Sessionless,
)
from log_broker.errors import ErrorCode

NOW_MS = 1_000
SESSION = 77
T0, T1, U0 = (b"t", 0), (b"t", 1), (b"u", 0)

Key = tuple[bytes, int]


class Found(NamedTuple):
    partition: int
    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = 10
    log_start_offset: int = 0
    records: Sequence[bytes] = ()
    preferred_replica: int = -1


def asked(*keys: Key, offset: int = 0) -> list[FetchedTopic]:
    return [FetchedTopic(name, [FetchedPartition(index, -1, offset, -1, -1, 100)]) for name, index in keys]


def forgotten(*keys: Key) -> list[ForgottenTopic]:
    return [ForgottenTopic(name, [index]) for name, index in keys]


def read_by(plan: Plan | Refused) -> list[Key]:
    assert not isinstance(plan, Refused)
    return [(topic.name, found.partition) for topic in plan.topics for found in topic.partitions]


def told(response: Response[Found]) -> list[Key]:
    return [(name, found.partition) for name, answers in response.topics for found in answers]


def answer(
    sessions: FetchSessions, plan: Plan | Refused, found: dict[Key, Found] | None = None, *, fresh_id: int = SESSION
) -> Response[Found]:
    """Finish a request; partitions that `found` does not name have nothing new."""
    assert not isinstance(plan, Refused)
    answers = [
        (topic.name, [(found or {}).get((topic.name, p.partition), Found(p.partition)) for p in topic.partitions])
        for topic in plan.topics
    ]
    return sessions.finish(plan, answers, fresh_id=fresh_id, now_ms=NOW_MS)


def opened(*keys: Key, slots_max: int = 10) -> FetchSessions:
    """Sessions of which one has begun over `keys`."""
    sessions = FetchSessions(slots_max=slots_max)
    open_one(sessions, *keys)
    return sessions


def open_one(sessions: FetchSessions, *keys: Key, fresh_id: int = SESSION, now_ms: int = NOW_MS) -> int:
    plan = sessions.begin(NO_SESSION, INITIAL_EPOCH, asked(*keys), (), now_ms)
    answers = [(name, [Found(index)]) for name, index in keys]
    assert isinstance(plan, Opening)
    return sessions.finish(plan, answers, fresh_id=fresh_id, now_ms=now_ms).session_id


def proceed(
    sessions: FetchSessions, epoch: int, *keys: Key, gone: Sequence[Key] = (), offset: int = 0
) -> Plan | Refused:
    return sessions.begin(SESSION, epoch, asked(*keys, offset=offset), forgotten(*gone), NOW_MS)


STATES = {
    "unknown": lambda: FetchSessions(slots_max=10),
    "begun": lambda: opened(T0),
    "moved on": lambda: moved_on(opened(T0)),
}


def moved_on(sessions: FetchSessions) -> FetchSessions:
    answer(sessions, proceed(sessions, 1))
    return sessions


NOT_FOUND = Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
WRONG_EPOCH = Refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH)


@pytest.mark.parametrize(
    ("state", "epoch", "outcome", "is_kept"),
    [
        ("unknown", INITIAL_EPOCH, Opening, False),
        ("unknown", FINAL_EPOCH, Sessionless, False),
        ("unknown", 1, NOT_FOUND, False),
        ("unknown", 2, NOT_FOUND, False),
        ("unknown", -2, NOT_FOUND, False),
        ("begun", INITIAL_EPOCH, Opening, False),
        ("begun", FINAL_EPOCH, Sessionless, False),
        ("begun", 1, Continuing, True),
        ("begun", 2, WRONG_EPOCH, True),
        ("begun", -2, WRONG_EPOCH, True),
        ("moved on", INITIAL_EPOCH, Opening, False),
        ("moved on", FINAL_EPOCH, Sessionless, False),
        ("moved on", 1, WRONG_EPOCH, True),
        ("moved on", 2, Continuing, True),
        ("moved on", 3, WRONG_EPOCH, True),
        ("moved on", -2, WRONG_EPOCH, True),
    ],
)
def test_every_epoch_in_every_state(state, epoch, outcome, is_kept) -> None:
    sessions = STATES[state]()
    plan = proceed(sessions, epoch, U0)
    if isinstance(outcome, Refused):
        assert plan == outcome
        if is_kept:
            # A refused request has changed nothing: the session goes on from where it was.
            assert read_by(proceed(sessions, {"begun": 1, "moved on": 2}[state])) == [T0]
    else:
        assert isinstance(plan, outcome)
        assert read_by(plan) == ([T0, U0] if outcome is Continuing else [U0])
    assert (SESSION in sessions) is is_kept
    assert len(sessions) == is_kept


def test_session_0_is_none() -> None:
    sessions = opened(T0)
    assert sessions.begin(NO_SESSION, 1, asked(T0), (), NOW_MS) == NOT_FOUND
    assert isinstance(sessions.begin(NO_SESSION, FINAL_EPOCH, asked(T0), (), NOW_MS), Sessionless)
    assert SESSION in sessions


def test_a_session_begins_with_its_response_and_tells_everything() -> None:
    sessions = FetchSessions(slots_max=10)
    plan = sessions.begin(NO_SESSION, INITIAL_EPOCH, asked(T0, U0), (), NOW_MS)
    assert len(sessions) == 0, "a client that is gone before its response leaves nothing behind"
    response = answer(sessions, plan)
    assert (response.session_id, response.error) == (SESSION, ErrorCode.NONE)
    assert told(response) == [T0, U0]


def test_without_a_session_everything_is_told_and_nothing_kept() -> None:
    sessions = FetchSessions(slots_max=10)
    response = answer(sessions, sessions.begin(NO_SESSION, FINAL_EPOCH, asked(T0, U0), (), NOW_MS))
    assert (response.session_id, told(response), len(sessions)) == (NO_SESSION, [T0, U0], 0)


def test_a_full_request_takes_the_place_of_the_session_it_names() -> None:
    sessions = opened(T0)
    plan = sessions.begin(SESSION, INITIAL_EPOCH, asked(U0), (), NOW_MS)
    assert answer(sessions, plan, fresh_id=78).session_id == 78
    assert SESSION not in sessions
    assert (len(sessions), sessions.partition_count) == (1, 1)


@pytest.mark.parametrize(
    ("found", "is_told"),
    [
        (Found(0), False),
        (Found(0, records=(b"batch",)), True),
        (Found(0, high_watermark=11), True),
        (Found(0, log_start_offset=1), True),
        (Found(0, ErrorCode.OFFSET_OUT_OF_RANGE, -1, -1), True),
    ],
)
def test_only_changes_is_told(found, is_told) -> None:
    sessions = opened(T0, U0)
    response = answer(sessions, proceed(sessions, 1), {T0: found})
    assert (response.session_id, response.error) == (SESSION, ErrorCode.NONE)
    assert told(response) == ([T0] if is_told else [])


def test_what_was_told_once_is_no_changes() -> None:
    sessions = opened(T0)
    moved = {T0: Found(0, high_watermark=11, log_start_offset=3)}
    assert told(answer(sessions, proceed(sessions, 1), moved)) == [T0]
    assert told(answer(sessions, proceed(sessions, 2), moved)) == []


def test_an_error_is_repeated_and_its_end_is_told() -> None:
    sessions = opened(T0)
    failing = {T0: Found(0, ErrorCode.KAFKA_STORAGE_ERROR, 10, 0)}
    assert told(answer(sessions, proceed(sessions, 1), failing)) == [T0]
    assert told(answer(sessions, proceed(sessions, 2), failing)) == [T0]
    assert told(answer(sessions, proceed(sessions, 3))) == [T0]
    assert told(answer(sessions, proceed(sessions, 4))) == []


def test_the_end_of_an_error_that_a_session_began_with_is_told() -> None:
    sessions = FetchSessions(slots_max=10)
    plan = sessions.begin(NO_SESSION, INITIAL_EPOCH, asked(T0), (), NOW_MS)
    assert told(answer(sessions, plan, {T0: Found(0, ErrorCode.KAFKA_STORAGE_ERROR)})) == [T0]
    assert told(answer(sessions, proceed(sessions, 1))) == [T0]


def test_partitions_join_change_and_leave() -> None:
    sessions = opened(T0, T1)
    response = answer(sessions, plan := proceed(sessions, 1, U0))
    assert read_by(plan) == [T0, T1, U0]
    assert told(response) == [U0], "a partition that joins is told even if it has nothing"
    plan = proceed(sessions, 2, T1, offset=5, gone=[T0, (b"never", 3)])
    assert isinstance(plan, Continuing)
    assert [p.offset for topic in plan.topics for p in topic.partitions] == [5, 0]
    assert read_by(plan) == [T1, U0]
    assert sessions.partition_count == 2
    assert read_by(proceed(sessions, 3, T0, gone=[T0])) == [T1, U0], "forgetting comes after joining"


def test_a_session_without_partitions_ends() -> None:
    sessions = opened(T0)
    response = answer(sessions, plan := proceed(sessions, 1, gone=[T0]))
    assert isinstance(plan, Sessionless)
    assert (response.session_id, told(response)) == (NO_SESSION, [])
    assert proceed(sessions, 2, T0) == NOT_FOUND
    assert sessions.partition_count == 0


def test_partitions_that_gave_records_go_to_the_end() -> None:
    sessions = opened(T0, T1, U0)
    answer(sessions, proceed(sessions, 1), {T0: Found(0, records=(b"batch",)), T1: Found(1, high_watermark=99)})
    assert read_by(proceed(sessions, 2)) == [T1, U0, T0]


def test_of_two_requests_that_wait_the_earlier_is_refused() -> None:
    sessions = opened(T0)
    earlier = proceed(sessions, 1, U0)
    later = proceed(sessions, 2, gone=[T0])
    changes = {T0: Found(0, high_watermark=11)}
    response = answer(sessions, earlier, changes)
    assert (response.error, told(response)) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, [])
    assert told(answer(sessions, later, changes)) == [U0]


def test_a_request_that_waits_while_its_session_loses_all_partitions_is_refused() -> None:
    sessions = opened(T0)
    waiting = proceed(sessions, 1)
    assert isinstance(proceed(sessions, 2, gone=[T0]), Sessionless)
    response = answer(sessions, waiting, {T0: Found(0, records=(b"batch",))})
    assert (response.error, told(response)) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, [])


def test_a_session_that_is_closed_under_a_waiting_request_lets_it_answer() -> None:
    sessions = opened(T0)
    waiting = proceed(sessions, 1)
    proceed(sessions, FINAL_EPOCH)
    assert told(answer(sessions, waiting, {T0: Found(0, records=(b"batch",))})) == [T0]
    assert (len(sessions), sessions.partition_count) == (0, 0)
    assert proceed(sessions, 2) == NOT_FOUND


def test_epoch_1_follows_the_last() -> None:
    sessions = opened(T0)
    plan = proceed(sessions, 1)
    assert isinstance(plan, Continuing)
    plan.session.epoch = EPOCH_MAX  # two thousand million requests later
    assert isinstance(proceed(sessions, EPOCH_MAX), Continuing)
    assert isinstance(proceed(sessions, 1), Continuing)


def test_without_a_free_slot_there_is_no_session() -> None:
    sessions = opened(T0, slots_max=1)
    assert open_one(sessions, U0, fresh_id=78, now_ms=NOW_MS + EVICTABLE_AFTER_MS) == NO_SESSION
    assert SESSION in sessions
    assert open_one(FetchSessions(slots_max=0), T0) == NO_SESSION


def test_the_session_unused_for_longest_makes_room() -> None:
    sessions = FetchSessions(slots_max=2)
    late = NOW_MS + EVICTABLE_AFTER_MS + 1
    open_one(sessions, T0, fresh_id=1)
    open_one(sessions, T0, T1, fresh_id=2)
    sessions.begin(1, 1, (), (), NOW_MS)
    assert open_one(sessions, U0, fresh_id=3, now_ms=late) == 3
    assert [session_id in sessions for session_id in (1, 2, 3)] == [True, False, True]
    assert sessions.partition_count == 2


def test_use_keeps_a_session() -> None:
    sessions = opened(T0, slots_max=1)
    later = NOW_MS + EVICTABLE_AFTER_MS
    sessions.begin(SESSION, 1, (), (), later)
    assert open_one(sessions, U0, fresh_id=78, now_ms=later + EVICTABLE_AFTER_MS) == NO_SESSION


def test_fewer_slots_are_reached_by_eviction() -> None:
    sessions = FetchSessions(slots_max=3)
    for fresh_id in (1, 2, 3):
        open_one(sessions, T0, fresh_id=fresh_id)
    sessions.slots_max = 1
    assert open_one(sessions, T0, fresh_id=4, now_ms=NOW_MS + EVICTABLE_AFTER_MS + 1) == 4
    assert len(sessions) == 1


def test_what_sessions_hold_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(fetch_session, "PARTITIONS_MAX", 2)
    sessions = opened(T0)
    assert open_one(sessions, T1, U0, fresh_id=78) == NO_SESSION
    assert isinstance(proceed(sessions, 1, U0), Continuing)
    assert proceed(sessions, 2, T1) == NOT_FOUND, "its client starts again, and without a session"
    assert (len(sessions), sessions.partition_count) == (0, 0)


def test_what_one_session_holds_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(fetch_session, "SESSION_PARTITIONS_MAX", 2)
    sessions = FetchSessions(slots_max=10)
    assert open_one(sessions, T0, T1, U0) == NO_SESSION
    assert open_one(sessions, T0, T1) == SESSION
    assert proceed(sessions, 1, U0) == NOT_FOUND
    assert (len(sessions), sessions.partition_count) == (0, 0)
