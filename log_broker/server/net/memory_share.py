"""
One connection's share of the memory budget: what of it is counted, and whether it waits for more.
"""

from log_broker.server.net.memory_budget import FREE_BYTES, Holder, MemoryBudget
from log_broker.wire.framing import FrameCutter


class MemoryShare:
    """Speaks to the budget in the name of `holder`, which each call is given: no circle keeps a closed connection."""

    __slots__ = ("_budget", "_cutter", "begun_at", "counted", "is_waiting")

    def __init__(self, budget: MemoryBudget, cutter: FrameCutter) -> None:
        self._budget = budget
        self._cutter = cutter
        self.counted = 0  # bytes that the budget knows of
        self.is_waiting = False
        self.begun_at = 0.0  # while a large request is read, later by the time in which it was not read on

    def account(self, holder: Holder, held: int, now: float) -> None:
        """Tell the budget what is held beyond the free share, and what the request that is being read still lacks."""
        cutter = self._cutter
        is_large = cutter.held > FREE_BYTES
        if not is_large:
            self.begun_at = 0.0
        elif not self.begun_at:
            self.begun_at = now
        self._budget.lacks(holder, cutter.pending - cutter.held if is_large else 0)
        counted = max(held - FREE_BYTES, 0)
        if counted != self.counted:
            change, self.counted = counted - self.counted, counted
            self._budget.change(change)

    def asks(self, holder: Holder, wanted: int, held: int) -> bool:
        """
        Say whether more may be read; if not, `holder.memory_freed` is called when it may.

        `wanted` is by how much the request that is being read must grow, 0 where it has room or none is being read.
        """
        cutter = self._cutter
        lacking = cutter.pending - cutter.held
        if wanted:
            allowed = self._budget.admits(wanted, holder, lacking)
        else:
            allowed = cutter.spare > 0 or held < FREE_BYTES or not self._budget.is_reserved
        if not allowed:
            self.is_waiting = True
            self._budget.wait(holder, lacking)
        elif self.is_waiting:
            self.stop_waiting(holder)
        return allowed

    def wait_to_answer(self, holder: Holder, *, is_beyond: bool) -> None:
        """Have `holder.memory_freed` called when its next request may be handled; `is_beyond` its free share."""
        self.is_waiting = True
        if is_beyond:
            self._budget.wait(holder)
        else:
            self._budget.wait_for_answer(holder)

    def stop_waiting(self, holder: Holder) -> None:
        """Wait no more, as it goes on by itself."""
        self.is_waiting = False
        self._budget.leave(holder)

    def end(self, holder: Holder) -> None:
        """Give everything back."""
        self._budget.lacks(holder, 0)
        self._budget.change(-self.counted)
        self._budget.leave(holder)
        self.counted = 0
