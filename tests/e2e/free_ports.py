"""Ports for processes that are started again on them."""

import random
import socket
from contextlib import ExitStack, suppress


def free_ports_in_a_row(count: int) -> int:
    """The first of so many free ports, below those that the system gives to outgoing connections meanwhile."""
    while True:
        first = random.randrange(20_000, 30_000)
        with suppress(OSError), ExitStack() as held:
            for port in range(first, first + count):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
