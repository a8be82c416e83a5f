from log_broker.core.fetch.quota import ReplicationQuota, ThrottledReplicas


def test_a_rate_holds_over_eleven_seconds() -> None:
    quota = ReplicationQuota(rate=10)
    quota.record(110, 500)
    assert not quota.is_exceeded(600)
    quota.record(1, 1500)
    assert quota.is_exceeded(1600)
    assert quota.free_at_ms(1600) == 11_000
    assert not quota.is_exceeded(11_000)
    assert quota.total == 111


def test_without_a_rate_nothing_waits() -> None:
    quota = ReplicationQuota()
    quota.record(1 << 40, 0)
    assert not quota.is_exceeded(0)


def test_which_replicas_are_throttled() -> None:
    assert ThrottledReplicas(frozenset({"*"})).has(3, 4)
    some = ThrottledReplicas(frozenset({"3:4", "5:1"}))
    assert some.has(3, 4)
    assert not some.has(4, 3)
    assert not ThrottledReplicas(frozenset()).has(0, 0)
