"""
A simulated machine: it runs a process, which can be killed, paused, told a wrong time, and started again.
"""

from collections.abc import Callable
from typing import Any, Protocol

from log_broker.sim.kernel.brief import brief
from log_broker.sim.kernel.disk import SimulatedDisk
from log_broker.sim.kernel.kernel import Action, Kernel
from log_broker.sim.kernel.network import Message, Network

NEVER_US = 2**62


class Process(Protocol):
    """What runs on a node: drivers of state machines, and whatever they need of each other."""

    def start(self) -> None: ...

    def receive(self, message: Message) -> None: ...

    def tick(self) -> None: ...


class Node:
    """One machine at one address. `incarnation` counts its processes."""

    def __init__(self, kernel: Kernel, network: Network, address: int, boot: Callable[["Node"], Process]) -> None:
        self.address = address
        self.name = f"n{address}"
        self.kernel = kernel
        self.network = network
        self.disk = SimulatedDisk(kernel, self.name)
        self.incarnation = 0
        self.process: Process | None = None
        self.paused = 0  # how many faults keep it so
        self.touched = False  # since the last check
        self.crashes = 0
        self.spy: Callable[[str], None] | None = None  # told of each message and disk job that begins, by name
        self._boot = boot
        self._clock_us = kernel.stream(f"clock/{self.name}").randint(0, 10**9)
        self._held: list[Action] = []
        self._deadline_us = NEVER_US
        self._wake_us = NEVER_US  # of the wake-up that is in the queue
        network.attach(address, self._receive)

    @property
    def is_up(self) -> bool:
        return self.process is not None

    def start(self) -> None:
        """Start a process, if none runs."""
        if self.process is not None:
            return
        self.incarnation += 1
        self._deadline_us = self._wake_us = NEVER_US
        self.kernel.trace(self.name, f"starts (process {self.incarnation})")
        self.process = self._boot(self)
        self.touched = True
        self.process.start()

    def stop(self, how: str, leave: Action) -> None:
        """End the process as `leave` has the disk see it."""
        self._held.clear()
        if self.process is None:
            return
        self.kernel.trace(self.name, how)
        self.process = None
        self.crashes += 1
        self.incarnation += 1  # answers on their way to the old process find nobody
        leave()

    def kill(self) -> None:
        self.stop("is killed", self.disk.kill)

    def cut_power(self) -> None:
        self.stop("loses power", self.disk.cut_power)

    def pause(self) -> None:
        self.paused += 1

    def resume(self) -> None:
        self.paused -= 1
        if not self.paused:
            held, self._held = self._held, []
            incarnation = self.incarnation
            for action in held:
                if incarnation == self.incarnation:
                    self.do(action)

    def jump_clock(self, by_us: int) -> None:
        """Have this node's clock leap, forward or back."""
        self._clock_us += by_us
        self._arm()

    def now_ms(self) -> int:
        return (self.kernel.now_us + self._clock_us) // 1000

    def wake_at(self, deadline_ms: int | None) -> None:
        """Have the process tick at this time of its own clock."""
        self._deadline_us = NEVER_US if deadline_ms is None else deadline_ms * 1000
        self._arm()

    def store(self, job: Action, done: Action) -> None:
        """Have the disk do a job; if it cannot, the process ends, as one must whose disk has failed it."""
        incarnation = self.incarnation

        def ended(error: OSError | None) -> None:
            if incarnation != self.incarnation:
                return
            if error is not None:
                self.stop(f"ends: {error}", self.disk.abandon)
            else:
                self.do(done)

        self.disk.submit(job, ended)
        if self.spy is not None:
            self.spy("job")

    def work(self, job: Action, ended: Callable[[BaseException | None], None]) -> None:
        """Have the disk do a job, and tell the process how it ended."""
        incarnation = self.incarnation
        errors: list[BaseException] = []

        def guarded() -> None:
            try:
                job()
            except OSError:
                raise
            except Exception as error:
                errors.append(error)

        def told(error: OSError | None) -> None:
            if incarnation == self.incarnation:
                self.do(lambda: ended(error or (errors[0] if errors else None)))

        self.disk.submit(guarded, told)
        if self.spy is not None:
            self.spy("job")

    def send_request(self, to: int, request_id: int, body: Any) -> None:
        self.network.send(Message(self.address, to, False, request_id, self.incarnation, body))
        if self.spy is not None:
            self.spy(type(body).__name__)

    def answer(self, request: Message, body: Any) -> None:
        """Answer a request."""
        self.network.send(Message(self.address, request.source, True, request.id, request.process, body))
        if self.spy is not None:
            self.spy(type(body).__name__)

    def _receive(self, message: Message) -> None:
        process = self.process
        if process is None or (message.is_answer and message.process != self.incarnation):
            return
        if self.kernel.tracing:
            self.kernel.trace(self.name, f"◀ n{message.source} {brief(message.body)}")
        self.do(lambda: process.receive(message))

    def do(self, action: Action) -> None:
        """Have the process do something: now, or when it is no longer paused."""
        if self.paused:
            self._held.append(action)
            return
        self.kernel.events += 1
        self.touched = True
        action()

    def _arm(self) -> None:
        """Keep one wake-up in the queue, no later than the deadline: one that comes too early asks again."""
        if self._deadline_us == NEVER_US:
            return
        due_us = self._deadline_us - self._clock_us
        if due_us < self._wake_us:
            self._wake_us = due_us
            incarnation = self.incarnation
            self.kernel.at(due_us, lambda: self._wake(due_us, incarnation))

    def _wake(self, due_us: int, incarnation: int) -> None:
        if due_us != self._wake_us or incarnation != self.incarnation:
            return
        self._wake_us = NEVER_US
        process = self.process
        if process is None:
            return
        if self.kernel.now_us + self._clock_us >= self._deadline_us:
            self._deadline_us = NEVER_US
            self.do(process.tick)
        else:
            self._arm()
