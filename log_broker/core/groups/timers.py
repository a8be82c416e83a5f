"""Deadlines by name, the earliest of which is known without a look at all of them."""

from heapq import heapify, heappop, heappush

_STALE_MAX = 64  # entries beyond twice those that count, before the heap is built again


class Timers:
    """
    One deadline for each name, in ms. Setting one and asking for the earliest take O(log n).

    Always: the heap has (deadline, name) of each that is set; what else it has was set before and does not count.
    """

    __slots__ = ("_at", "_heap")

    def __init__(self) -> None:
        self._at: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, name: str) -> bool:
        return name in self._at

    def set(self, name: str, deadline_ms: int) -> None:
        """Set the deadline of a name, which may have another."""
        if self._at.get(name) == deadline_ms:
            return
        self._at[name] = deadline_ms
        heappush(self._heap, (deadline_ms, name))
        if len(self._heap) > 2 * len(self._at) + _STALE_MAX:
            self._heap = [(at, each) for each, at in self._at.items()]
            heapify(self._heap)

    def drop(self, name: str) -> None:
        """Forget the deadline of a name; one that has none is no error."""
        self._at.pop(name, None)

    def clear(self) -> None:
        self._at.clear()
        self._heap.clear()

    def earliest_ms(self) -> int | None:
        """Return the earliest deadline, None when there is none."""
        heap, deadlines = self._heap, self._at
        while heap and deadlines.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now_ms: int) -> list[str]:
        """Return the names whose deadline is over, the earliest first; they keep it."""
        found: dict[str, int] = {}
        while (earliest := self.earliest_ms()) is not None and earliest <= now_ms:
            found[self._heap[0][1]] = earliest
            heappop(self._heap)
        for name, deadline in found.items():
            heappush(self._heap, (deadline, name))
        return list(found)
