"""Answers that somebody else gives, in that moment and without a task that waits for them."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any


class Promised:
    """
    What a handler returns for an answer to come. Whoever owes the result is given this in place of a future.

    Unlike a future it tells of the result at once, so whoever sets it is done with its own work by then.
    """

    __slots__ = ("_answer_of", "_is_done", "_result", "_tell")

    def __init__(self, answer_of: Callable[[Any], Mapping[str, Any]]) -> None:
        """`answer_of` makes the response's values of the result."""
        self._answer_of = answer_of
        self._result: Any = None
        self._is_done = False
        self._tell: Callable[[], None] | None = None

    def done(self) -> bool:
        return self._is_done

    def set_result(self, result: Any) -> None:
        self._result = result
        self._is_done = True
        tell, self._tell = self._tell, None  # it may hold this, and no circle is to be left behind
        if tell is not None:
            tell()

    def on_result(self, tell: Callable[[], None]) -> None:
        """Call `tell` when the result is there, which it may be."""
        if self._is_done:
            tell()
        else:
            self._tell = tell

    def values(self) -> Mapping[str, Any]:
        """Return the response's values, once the result is there."""
        return self._answer_of(self._result)

    async def __call__(self) -> Mapping[str, Any]:
        """Return them when it is, for who awaits handlers."""
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tell() -> None:
            if not told.done():
                told.set_result(None)

        self.on_result(tell)
        await told
        return self.values()
