"""
A network that drops, delays, duplicates and reorders, and whose links can be cut one way or both.

Like a connection, it brings an answer only to the process that asked; all else may arrive late, twice or never.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from log_broker.sim.kernel.brief import brief
from log_broker.sim.kernel.kernel import Kernel


class Message(NamedTuple):
    """`process` is the sender's incarnation for a request, and the asker's for an answer."""

    source: int
    target: int
    is_answer: bool
    id: int
    process: int
    body: Any


@dataclass(slots=True)
class Weather:
    """How bad the network is for every message that is sent now: probabilities, and delays in microseconds."""

    loss: float = 0.0
    duplication: float = 0.0
    delay_us: tuple[int, int] = (200, 1_500)
    straggling: float = 0.0  # how many take up to a hundred times as long, and so are overtaken


class Network:
    """All links between all addresses."""

    def __init__(self, kernel: Kernel) -> None:
        self.weather = Weather()
        self.cut: dict[tuple[int, int], int] = {}  # (source, target) -> how many faults keep it cut
        self._kernel = kernel
        self._random = kernel.stream("network").random
        self._receivers: dict[int, Callable[[Message], None]] = {}

    def attach(self, address: int, receive: Callable[[Message], None]) -> None:
        """Have messages for an address handed to `receive`."""
        self._receivers[address] = receive

    def cut_link(self, source: int, target: int) -> None:
        """Let nothing pass this way any more."""
        self.cut[source, target] = self.cut.get((source, target), 0) + 1

    def repair_link(self, source: int, target: int) -> None:
        """Take one cut back."""
        left = self.cut.pop((source, target)) - 1
        if left:
            self.cut[source, target] = left

    def send(self, message: Message) -> None:
        """Have a message arrive, if it does."""
        weather = self.weather
        chance = self._random
        link = (message.source, message.target)
        kernel = self._kernel
        if link in self.cut or (weather.loss > 0 and chance() < weather.loss):
            if kernel.tracing:
                kernel.trace(f"n{message.source}", f"✗ n{message.target} {brief(message.body)}")
            return
        copies = 2 if weather.duplication > 0 and chance() < weather.duplication else 1
        for _ in range(copies):
            low, high = weather.delay_us
            delay_us = low + int(chance() * (high - low))
            if weather.straggling > 0 and chance() < weather.straggling:
                delay_us = int(delay_us * (1 + 99 * chance()))
            kernel.after(delay_us, lambda: self._arrive(message))

    def _arrive(self, message: Message) -> None:
        if (message.source, message.target) in self.cut:
            return
        receive = self._receivers.get(message.target)
        if receive is not None:
            receive(message)
