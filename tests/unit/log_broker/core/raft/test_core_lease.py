"""Until when a broker may take it that no other leads in its place."""

from log_broker.core.raft.lease import Lease

SESSION_MS = 9_000
# Clocks run apart by less than a tenth.
LEASE_MS = 8_100


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0
        self.lease = Lease(lambda: self.now_ms, session_timeout_ms=SESSION_MS)

    def valid_at(self, now_ms: int) -> bool:
        self.now_ms = now_ms
        return self.lease.valid


def test_there_is_no_lease_before_a_heartbeat_was_answered() -> None:
    assert not Clock().valid_at(0)


def test_a_lease_ends_before_the_session_by_what_clocks_may_run_apart() -> None:
    clock = Clock()
    clock.lease.renewed(1_000)
    assert clock.valid_at(1_000 + LEASE_MS - 1)
    assert not clock.valid_at(1_000 + LEASE_MS)


def test_an_answer_to_an_older_heartbeat_shortens_nothing() -> None:
    clock = Clock()
    clock.lease.renewed(5_000)
    clock.lease.renewed(1_000)
    assert clock.valid_at(5_000 + LEASE_MS - 1)
    clock.lease.renewed(6_000)
    assert clock.valid_at(6_000 + LEASE_MS - 1)
    assert not clock.valid_at(6_000 + LEASE_MS)


def test_a_fenced_broker_has_no_lease_until_it_is_answered_again() -> None:
    clock = Clock()
    clock.lease.renewed(0)
    clock.lease.ended()
    assert not clock.valid_at(1)
    clock.lease.renewed(2)
    assert clock.valid_at(3)
