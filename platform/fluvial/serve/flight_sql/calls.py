"""
Calls of gRPC's threads answered in the event loop of the server, within bounds, and until their client hangs up.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from pyarrow import flight

from fluvial.serve.errors import ServeError
from fluvial.serve.flight_sql.door import Gone

CALLS_MAX = 64
"""So many answers are made or sent at the same time: each has at most what `SqlLimits` allow it."""
_LOOK_S = 0.05

_log = logging.getLogger(__name__)
Result = TypeVar("Result")


class Calls:
    """
    Used by any thread but the loop's; `stop` ends what is waited for.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_stopping = False
        self._free = threading.BoundedSemaphore(CALLS_MAX)

    def stop(self) -> None:
        """
        Take no more calls, and end those that are waited for.
        """
        self._is_stopping = True

    def enter(self) -> Callable[[], None]:
        """
        Take a place among the calls; what is returned gives it back. Raises an error of Flight's where there is none.
        """
        if self._is_stopping:
            raise flight.FlightUnavailableError("the server is stopping")
        if not self._free.acquire(blocking=False):
            raise flight.FlightUnavailableError(f"{CALLS_MAX} calls are answered already; try again")
        return self._free.release

    def run(self, context: Any, work: Callable[[Gone], Coroutine[Any, Any, Result]]) -> Result:
        """
        What `work` returns in the loop. Raises an error of Flight's.
        """
        left = asyncio.Event()

        async def gone() -> None:
            await left.wait()

        with told():
            running = asyncio.run_coroutine_threadsafe(work(gone), self._loop)
            while True:
                try:
                    return running.result(_LOOK_S)
                except TimeoutError:
                    if running.done():
                        raise
                    if context.is_cancelled() or self._is_stopping:
                        self._leave(left, running)

    def _leave(self, left: asyncio.Event, running: "Future[Any]") -> None:
        self._loop.call_soon_threadsafe(left.set)
        with told():
            running.exception()  # it is over, as the engine ends
        raise flight.FlightCancelledError("the client has hung up, or the server is stopping")


@contextmanager
def told() -> Iterator[None]:
    """
    Tell what is raised within this `with` as an error of Flight's, in one line.
    """
    try:
        yield
    except flight.FlightError:
        raise
    except ServeError as error:
        kind = {408: flight.FlightTimedOutError, 503: flight.FlightUnavailableError}.get(error.status)
        raise (kind or flight.FlightServerError)(str(error)) from None
    except Exception as error:
        _log.exception("a call of Flight SQL has failed")
        raise flight.FlightInternalError("the server has failed; its log says where") from error
