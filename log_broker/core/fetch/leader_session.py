"""
The fetch session that a follower has with one leader (KIP-227): its requests without an answer, and when to ask again.
"""

from collections import deque

from log_broker.core.fetch.replica_messages import INITIAL_EPOCH, NO_SESSION, ReplicaFetchResponse
from log_broker.errors import ErrorCode

BACKOFF_MS_MIN = 20
REQUESTS_MAX = 2
_EPOCH_MAX = 2**31 - 1


class LeaderSession:
    """Requests are numbered from 1 on; answers come in their order."""

    def __init__(self) -> None:
        self.retry_ms = 0  # the leader is asked nothing before this
        self._id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._opening = 0  # the number of the request that opens the session, while it has no answer
        self._gets_sessions = True  # as far as is known
        self._under_way: deque[int] = deque()  # the numbers of the requests without an answer
        self._requests = 0
        self._backoff_ms = 0

    @property
    def is_open(self) -> bool:
        return self._id != NO_SESSION

    @property
    def is_waiting(self) -> bool:
        """Whether the leader owes an answer."""
        return bool(self._under_way)

    @property
    def is_full(self) -> bool:
        """Whether no more requests may be sent before one is answered."""
        return len(self._under_way) >= REQUESTS_MAX

    @property
    def next_number(self) -> int:
        """The number of the request that is sent next."""
        return self._requests + 1

    def sent(self) -> tuple[int, int, bool]:
        """Take note of a request; return its session id, its epoch in it, and whether its answer may wait."""
        self._requests += 1
        self._under_way.append(self._requests)
        if self._id == NO_SESSION:
            self._opening = self._requests
            # Nothing else can be told until one that opens a session is answered.
            return NO_SESSION, INITIAL_EPOCH, not self._gets_sessions
        epoch = self._epoch
        self._epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        return self._id, epoch, True

    def answered(self, response: ReplicaFetchResponse) -> int | None:
        """Return the number of the request that was answered, None for one of a connection that has been given up."""
        if not self._under_way:
            return None
        number = self._under_way.popleft()
        if response.error is ErrorCode.NONE:
            self._backoff_ms = 0
            if number == self._opening:
                self._opening = 0
                self._id = response.session_id
                self._gets_sessions = self.is_open
                self._epoch = INITIAL_EPOCH + 1 if self.is_open else INITIAL_EPOCH
        return number

    def disconnected(self) -> None:
        """No request under way will be answered."""
        self._under_way.clear()

    def back_off(self, now_ms: int, longest_ms: int) -> None:
        """Ask nothing for a while, longer each time until a request is answered."""
        self._backoff_ms = min(max(self._backoff_ms * 2, BACKOFF_MS_MIN), longest_ms)
        self.retry_ms = now_ms + self._backoff_ms

    def end(self) -> None:
        """The leader knows nothing of the session any more."""
        self._id, self._epoch, self._opening = NO_SESSION, INITIAL_EPOCH, 0
