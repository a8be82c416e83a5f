"""
A member's share of the work of one partition: what is open of it, and who waits for whom. Pure.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from fluvial.acknowledgement.window import Window

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Share(Generic[T]):
    """
    A partition that this member owns, and records of type T.

    `held` ends with the ownership: what was delivered before then no longer counts. `said` is what was committed last.
    """

    window: Window
    ordered: bool
    held: bool = True
    paused: bool = False
    said: tuple[int | None, str] = (None, "")
    _behind: dict[Any, deque[T]] = field(default_factory=dict)

    def may_go(self, key: object, record: T) -> bool:
        """Whether a record that was taken may be delivered now; else it waits for those of its key before it."""
        if not self.ordered or key is None:
            return True
        behind = self._behind.get(key)
        if behind is None:
            self._behind[key] = deque()
            return True
        behind.append(record)
        return False

    def following(self, key: object) -> T | None:
        """The record that waited for the one of this key which has just been acknowledged."""
        behind = self._behind.get(key)
        if behind is None:
            return None
        if behind:
            return behind.popleft()
        del self._behind[key]
        return None

    def is_full(self, open_max: int, runs_max: int) -> bool:
        """Whether as many records, or runs of them, are open as may be."""
        return self.window.open >= open_max or self.window.runs >= runs_max
