"""The leader's view of its followers: who is put out of the ISR, and what brings one back."""

from log_broker.core.partition.replication import Leadership, Leading

LAG_MS = 1000


def leading(isr: tuple[int, ...], partition_epoch: int = 0) -> Leadership:
    return Leadership(leader_epoch=1, partition_epoch=partition_epoch, replicas=(1, 2, 3), isr=isr, recovering=False)


def test_silent_followers_are_put_out_for_good_while_the_high_watermark_stands_still() -> None:
    leader = Leading(1, leading((1, 2, 3)), epoch_start=0, lag_ms_max=LAG_MS, now_ms=0)
    for follower in (2, 3):
        assert leader.fetched(follower, 7, 10, 0, leader_end=10, now_ms=0)
    # A record that neither fetches: one lags a moment before the other.
    assert leader.fetched(3, 7, 10, 0, leader_end=10, now_ms=5)
    out = leader.wanted(10, 11, LAG_MS + 3)
    assert out is not None
    assert out.isr == (1, 3)
    assert leader.settled(leading((1, 3), 1), LAG_MS + 4)
    assert leader.watermark(11) == 10
    alone = leader.wanted(10, 11, LAG_MS + 10)
    assert alone is not None
    assert alone.isr == (1,), "the silent one does not come back for having all before the high watermark"
    assert leader.settled(leading((1,), 2), LAG_MS + 11)
    assert leader.watermark(11) == 11
    assert leader.wanted(11, 11, LAG_MS + 20) is None


def test_a_fetch_brings_a_follower_back() -> None:
    leader = Leading(1, leading((1, 2, 3)), epoch_start=0, lag_ms_max=LAG_MS, now_ms=0)
    assert leader.fetched(3, 7, 10, 0, leader_end=10, now_ms=LAG_MS)
    out = leader.wanted(10, 11, LAG_MS + 3)
    assert out is not None
    assert leader.settled(leading((1, 3), 1), LAG_MS + 4)
    assert leader.wanted(10, 11, LAG_MS + 5) is None
    assert leader.fetched(2, 7, 11, 0, leader_end=11, now_ms=LAG_MS + 6)
    back = leader.wanted(11, 11, LAG_MS + 7)
    assert back is not None
    assert back.isr == (1, 2, 3)
