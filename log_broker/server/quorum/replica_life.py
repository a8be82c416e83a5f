"""
What asyncio offers to one life of a quorum's replica: a clock, a timer, a disk that works in a thread, and tasks.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from log_broker.core.raft.messages import RaftRequest, RaftResponse

GOODBYE_SECONDS_MAX = 0.5


class Replica(Protocol):
    """Whose life it is."""

    def tick(self) -> None:
        """Do what is due."""
        ...

    def ask(self, to: int, request_id: int, body: RaftRequest) -> None:
        """Send a request to another replica."""
        ...

    def submit(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        """Have a thread do `work`."""
        ...

    def stored(self, done: Callable[[], None]) -> None:
        """Go on after the disk has done something."""
        ...

    def failed(self, error: BaseException) -> None:
        """The disk could not do its job: this life has ended."""
        ...


class ReplicaLife:
    """What asyncio offers to one life of a replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0
        self._jobs: deque[tuple[Callable[[], None], Callable[[], None]]] = deque()  # the first is being done
        self._asking: set[asyncio.Task[None]] = set()
        self._alive = True
        self._idle = asyncio.Event()
        self._idle.set()

    def now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def wake_at(self, deadline_ms: int | None) -> None:
        if self._timer is not None:
            if deadline_ms is not None and self._due_ms <= deadline_ms:
                return  # a tick too early asks for the next: most deadlines are put off before they come
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None and self._alive:
            self._due_ms = deadline_ms
            self._timer = self._loop.call_at(deadline_ms / 1000 + 0.001, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._replica.tick()

    def store(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        if not self._alive:
            return
        self._jobs.append((job, done))
        if len(self._jobs) == 1:
            self._idle.clear()
            self._work()

    def send_request(self, to: int, request_id: int, body: RaftRequest) -> None:
        if self._alive:
            self._replica.ask(to, request_id, body)

    def send_response(self, token: Any, body: RaftResponse) -> None:
        settle(token, body)

    def run(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def stop(self) -> None:
        """Let the disk finish, and what was said last leave; then do nothing more."""
        await self._idle.wait()
        if self._asking:
            await asyncio.wait(self._asking, timeout=GOODBYE_SECONDS_MAX)
        self.abandon()

    def abandon(self) -> None:
        """Do nothing more, and wait for nobody."""
        self._alive = False
        self.wake_at(None)
        self._jobs.clear()
        self._idle.set()
        for task in self._asking:
            task.cancel()

    def _work(self) -> None:
        self._replica.submit(self._jobs[0][0], self._worked)

    def _worked(self, error: BaseException | None) -> None:
        if not self._alive:
            return
        if error is not None:
            self._replica.failed(error)
            return
        _, done = self._jobs.popleft()
        if self._jobs:
            self._work()
        else:
            self._idle.set()
        self._replica.stored(done)


def settle(promise: "asyncio.Future[Any]", result: Any) -> None:
    """Set a future's result, unless it was cancelled or has one."""
    if not promise.done():
        promise.set_result(result)
