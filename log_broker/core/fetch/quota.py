"""
The rate at which replication may move what is not in sync, so that a reassignment leaves room for clients (KIP-73).

The rate is that over the last eleven seconds, in steps of one (`replication.quota.window.num` and `.size.seconds`).
What is in flight is counted when it arrives: the rate holds on average, and single answers may overshoot it.
"""

WINDOWS = 11
WINDOW_MS = 1000
UNLIMITED = 2**63 - 1


class ReplicationQuota:
    """Bytes per second of throttled replicas, in one direction."""

    def __init__(self, rate: int = UNLIMITED) -> None:
        self.rate = rate
        self.total = 0
        self._windows: dict[int, int] = {}  # number of the window -> bytes

    @property
    def is_limited(self) -> bool:
        return self.rate < UNLIMITED

    def record(self, size: int, now_ms: int) -> None:
        """Count bytes of a throttled replica."""
        self.total += size
        if self.rate >= UNLIMITED:
            return
        self._forget_old(now_ms)
        at = now_ms // WINDOW_MS
        self._windows[at] = self._windows.get(at, 0) + size

    def is_exceeded(self, now_ms: int) -> bool:
        """Whether throttled replicas must wait."""
        return self.free_at_ms(now_ms) > now_ms

    def free_at_ms(self, now_ms: int) -> int:
        """When throttled replicas may go on: now, if they need not wait."""
        if self.rate >= UNLIMITED or not self._windows:
            return now_ms
        self._forget_old(now_ms)
        allowed = self.rate * WINDOWS * WINDOW_MS // 1000
        left = sum(self._windows.values())
        for at in sorted(self._windows):
            if left <= allowed:
                break
            left -= self._windows[at]
            now_ms = max(now_ms, (at + WINDOWS) * WINDOW_MS)
        return now_ms

    def _forget_old(self, now_ms: int) -> None:
        oldest = now_ms // WINDOW_MS - WINDOWS + 1
        if self._windows and next(iter(self._windows)) < oldest:
            self._windows = {at: size for at, size in self._windows.items() if at >= oldest}


class ThrottledReplicas:
    """The value of `leader.` or `follower.replication.throttled.replicas`: `partition:broker,…`, or `*` for all."""

    __slots__ = ("_all", "_pairs")

    def __init__(self, words: frozenset[str]) -> None:
        self._all = "*" in words
        self._pairs = words

    def has(self, partition: int, broker: int) -> bool:
        """Whether the replica on `broker` is throttled."""
        return self._all or (bool(self._pairs) and f"{partition}:{broker}" in self._pairs)
