"""
The lease of a broker: until when it may take it that no other has been elected in its place.

A controller fences a broker that it has not heard from for the session timeout, and elects other leaders then. It
counts from when a heartbeat came in; the broker counts from when it sent that heartbeat, which was before, and stops
earlier by a margin for clocks that run apart. It prolongs no lease of a broker that it has decided to fence, committed
or not, nor of one that has yet to replay the last change of leaders. A controller that may have a successor already
answers none, least of all those of the broker that it is itself: the successor's sessions begin when it is elected. So
a leader whose lease holds is still the leader, and one that is cut off takes no more of what an election drops before
there can be one.

`acks=all` needs no lease: a new leader comes from the ISR, whose members refuse the old epoch, so what is acknowledged
by all of them is with the new leader too. A write at acks=0 or 1 rests on the leader alone.
"""

from collections.abc import Callable

DRIFT_SHARE = 10  # clocks run apart by less than a tenth of what they measure


class Lease:
    """Fed with answered heartbeats; `valid` is asked with each append that depends on it."""

    def __init__(self, steady_ms: Callable[[], int], *, session_timeout_ms: int) -> None:
        """`steady_ms` is the monotonic clock of which `renewed` is given times."""
        self._steady_ms = steady_ms
        self.session_timeout_ms = session_timeout_ms
        self.until_ms: int | None = None  # None: no heartbeat has been answered yet, or the broker was fenced

    @property
    def valid(self) -> bool:
        return self.until_ms is not None and self._steady_ms() < self.until_ms

    def renewed(self, sent_ms: int) -> None:
        """Take a heartbeat sent at `sent_ms` and answered with "not fenced"; one from before changes nothing."""
        until_ms = sent_ms + self.session_timeout_ms - self.session_timeout_ms // DRIFT_SHARE
        if self.until_ms is None or until_ms > self.until_ms:
            self.until_ms = until_ms

    def ended(self) -> None:
        """The controller says that this broker is fenced."""
        self.until_ms = None
