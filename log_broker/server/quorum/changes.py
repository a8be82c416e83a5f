"""
Waiting for what the metadata log brings.
"""

import asyncio
from collections.abc import Callable


def _always() -> bool:
    return True


class Changes:
    """Wakes who waits when something has been replayed or another leader is known."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}

    def next(self, is_so: Callable[[], bool] = _always) -> "asyncio.Future[None]":
        """
        Return what is done at the next change at which `is_so` says yes.

        Many may wait at once, so who would only look and wait again is not woken.
        """
        change: asyncio.Future[None] = self._loop.create_future()
        self._waiting[change] = is_so
        change.add_done_callback(lambda each: self._waiting.pop(each, None))
        return change

    async def wait(self, seconds: float, is_so: Callable[[], bool] = _always) -> None:
        """Return at the next change, see `next`, or when the time is up."""
        change = self.next(is_so)
        await asyncio.wait((change,), timeout=seconds)
        change.cancel()

    def notify(self) -> None:
        """Wake those whose condition holds now."""
        for change, is_so in list(self._waiting.items()):
            if not change.done() and is_so():
                change.set_result(None)
