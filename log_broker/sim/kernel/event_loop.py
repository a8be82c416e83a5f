"""
An asyncio event loop in virtual time: what runs on it in production runs on it here, turn by turn.

One loop is one process of one machine. Each turn is an event of the kernel, and takes a little of its time, so that
code which never waits does not stop the clock. Work for an executor is done by the machine's disk. When the process is
gone its loop is dead: nothing on it runs any more, and what still holds it is ignored.
"""

import asyncio
import heapq
import socket
import time
import warnings
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any, Protocol

from log_broker.sim.kernel.kernel import Action, Kernel

if TYPE_CHECKING:
    from log_broker.sim.kernel.streams import Streams

TURN_US = 20


class Host(Protocol):
    """The machine that a loop's process runs on."""

    kernel: Kernel
    name: str
    address: int
    spy: Callable[[str], None] | None

    def do(self, action: Action) -> None:
        """Run `action` now, or once the process is no longer paused."""
        ...

    def work(self, job: Action, ended: Callable[[BaseException | None], None]) -> None:
        """Have a job done beside the loop; then tell how it ended."""
        ...


class NumberedFuture(asyncio.Future[Any]):
    """Its place in a set hangs on the order of making, not on its address: who waits for several walks such sets."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class NumberedTask(asyncio.Task[Any]):
    """Likewise."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class VirtualLoop(asyncio.BaseEventLoop):
    """As much of an event loop as the broker uses."""

    def __init__(self, host: Host, streams: "Streams", failed: Callable[[str], None]) -> None:
        self.host = host
        self.turn_took: Callable[[float], None] = _ignored  # is told the CPU seconds of each turn
        self.is_dead = False
        self._kernel = host.kernel
        self._streams = streams
        self._failed = failed
        self._started_s = host.kernel.stream(f"uptime/{host.name}").randint(1, 10**6)
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[int, int, asyncio.TimerHandle]] = []
        self._timed = 0
        self._made = 0
        self._turn_asked = False
        self._wake_us = -1  # when a wake-up for timers is in the kernel's queue
        self._left: list[asyncio.Task[Any]] = []

    # What runs it

    def run(self, callback: Callable[..., object], *args: object) -> None:
        """Run a callback that comes from outside as one of this loop's."""
        if self.is_dead:
            return
        around = events._get_running_loop()  # a scenario's, when that starts a broker itself
        events._set_running_loop(self)
        try:
            callback(*args)
        finally:
            events._set_running_loop(around)

    def die(self) -> None:
        """The process is gone."""
        self.is_dead = True
        self._left = list(asyncio.all_tasks(self))
        for task in self._left:
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    def bury(self) -> None:
        """
        Let go of what a dead loop has left, once the run is over.

        Earlier it would unwind, and clean up after itself in files that are another process's by then.
        """
        with warnings.catch_warnings():
            # A run that a check ended leaves handlers whose turn had not come.
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            for task in self._left:
                coroutine = task.get_coro()
                try:
                    coroutine.close()
                except (RuntimeError, ValueError):
                    continue  # it waits while it unwinds, or is running
        self._left.clear()
        self._ready.clear()
        self._timers.clear()

    def _ask_turn(self) -> None:
        if not self._turn_asked:
            self._turn_asked = True
            self._kernel.after(TURN_US, self._begin_turn)

    def _begin_turn(self) -> None:
        if self.is_dead:
            return
        self.host.do(self._turn)

    def _turn(self) -> None:
        if self.is_dead:
            return
        self._turn_asked = False
        ready, timers = self._ready, self._timers
        now_us = self._kernel.now_us
        while timers and timers[0][0] <= now_us:
            handle = heapq.heappop(timers)[2]
            if not handle._cancelled:
                ready.append(handle)
        events._set_running_loop(self)
        turn_took, began = self.turn_took, time.thread_time()
        try:
            for _ in range(len(ready)):
                next_handle = ready.popleft()
                if not next_handle._cancelled:
                    next_handle._run()
                    if self.is_dead:
                        return
        finally:
            events._set_running_loop(None)
        turn_took(time.thread_time() - began)
        if ready:
            self._ask_turn()
        self._arm()

    def _arm(self) -> None:
        """Keep a wake-up in the kernel's queue that is no later than the first timer."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if timers and (self._wake_us < 0 or timers[0][0] < self._wake_us):
            due_us = self._wake_us = timers[0][0]
            self._kernel.at(due_us, lambda: self._wake(due_us))

    def _wake(self, due_us: int) -> None:
        if due_us != self._wake_us or self.is_dead:
            return
        self._wake_us = -1
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if timers and timers[0][0] <= self._kernel.now_us:
            if not self._turn_asked:
                self._turn_asked = True
                self.host.do(self._turn)
        else:
            self._arm()

    # What asyncio asks of a loop

    def time(self) -> float:
        return self._started_s + self._kernel.now_us / 1e6

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        handle = asyncio.Handle(callback, args, self, context)
        if not self.is_dead:
            self._ready.append(handle)
            self._ask_turn()
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self._call_at_us(self._kernel.now_us + max(int(delay * 1e6), 0), callback, args, context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self._call_at_us(int((when - self._started_s) * 1e6 + 0.5), callback, args, context)

    def _call_at_us(
        self, due_us: int, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(self._started_s + due_us / 1e6, callback, args, self, context)
        if not self.is_dead:
            self._timed += 1
            heapq.heappush(self._timers, (due_us, self._timed, handle))
            if self._wake_us < 0 or due_us < self._wake_us:
                self._arm()
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is skipped when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        future = NumberedFuture(loop=self)
        self._made = future.number = self._made + 1
        return future

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        NumberedTask.number = self._made = self._made + 1  # its hash is asked for before it is returned
        task = NumberedTask(coro, loop=self, name=name, context=context)
        task.number = self._made
        if self.is_dead:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            self._left.append(task)
        return task

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = self.create_future()
        results: list[Any] = []

        def ended(error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(results[0])
            else:
                future.set_exception(error)

        self.host.work(lambda: results.append(func(*args)), lambda error: self.run(ended, error))
        return future

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_: object
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        return await self._streams.connect(self, protocol_factory, host, port)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], *, sock: socket.socket, **_: object
    ) -> "VirtualServer":
        host, port = sock.getsockname()[:2]
        self._streams.listen(self, protocol_factory, host, port)
        return VirtualServer(self._streams, host, port)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.is_dead:
            return
        error = context.get("exception")
        if isinstance(error, AssertionError):
            raise error
        self._failed(f"{context.get('message')}: {error!r}")

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.is_dead

    def is_closed(self) -> bool:
        return self.is_dead


def _ignored(cpu_seconds: float) -> None:
    """Nobody asks."""


class VirtualServer:
    """A listening address, as `create_server` returns it."""

    def __init__(self, streams: "Streams", host: str, port: int) -> None:
        self._streams = streams
        self._host = host
        self._port = port

    def close(self) -> None:
        self._streams.unlisten(self._host, self._port)

    async def wait_closed(self) -> None:
        """Nothing to wait for."""
