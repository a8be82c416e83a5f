"""Fetches that a leader keeps back until there is something to tell, or their time is up."""

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any

from log_broker.core.raft.messages import FetchRequest
from log_broker.core.raft.voters import ReplicaKey


class Parked:
    """One fetch; `deadline_ms` is when it is answered at the latest."""

    __slots__ = ("body", "deadline_ms", "link", "token")

    def __init__(self, token: Any, body: FetchRequest, link: Any, deadline_ms: int) -> None:
        self.token = token
        self.body = body
        self.link = link
        self.deadline_ms = deadline_ms

    def __lt__(self, other: "Parked") -> bool:
        return self.deadline_ms < other.deadline_ms


class ParkedFetches:
    """At most one of each replica, and which is due first."""

    def __init__(self) -> None:
        self._of: dict[ReplicaKey, Parked] = {}
        self._by_deadline: list[Parked] = []  # a heap, also of some that have had their answers

    def __iter__(self) -> Iterator[Parked]:
        """Yield those that are kept now, whatever becomes of them meanwhile."""
        return iter(list(self._of.values()))

    def get(self, key: ReplicaKey) -> Parked | None:
        return self._of.get(key)

    def put(self, parked: Parked) -> None:
        """Keep a fetch, in place of what its replica asked before."""
        self._of[parked.body.replica] = parked
        heappush(self._by_deadline, parked)

    def remove(self, parked: Parked) -> None:
        del self._of[parked.body.replica]

    def first(self) -> Parked | None:
        """Return the one that is due first."""
        heap = self._by_deadline
        while heap and self._of.get(heap[0].body.replica) is not heap[0]:
            heappop(heap)
        return heap[0] if heap else None

    def clear(self) -> None:
        self._of.clear()
        self._by_deadline.clear()
