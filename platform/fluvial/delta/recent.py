"""
A bounded memory of what was read or written lately.
"""

from collections import OrderedDict
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """Values by name, as many as there is room for: the one that was not asked for longest goes first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._values: OrderedDict[str, tuple[Value, int]] = OrderedDict()

    def get(self, name: str) -> Value | None:
        """The value, if it is known still."""
        found = self._values.get(name)
        if found is None:
            return None
        self._values.move_to_end(name)
        return found[0]

    def put(self, name: str, value: Value, nbytes: int) -> None:
        """Remember a value, which takes so many bytes. The newest is kept however large it is."""
        before = self._values.pop(name, None)
        self._bytes += nbytes - (0 if before is None else before[1])
        self._values[name] = (value, nbytes)
        while self._bytes > self._bytes_max and len(self._values) > 1:
            self._bytes -= self._values.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Forget everything."""
        self._values.clear()
        self._bytes = 0
