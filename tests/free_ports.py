"""
Free ports below those that systems give to outgoing connections, which would take them before a process that starts
later, or is started again.
"""

import random
import socket
from contextlib import ExitStack, suppress

_PORTS = range(15_000, 32_000)


def free_port() -> int:
    """A port that nothing listens on."""
    return free_ports_in_a_row(1)


def free_ports(count: int) -> list[int]:
    """So many different ports that nothing listens on."""
    first = free_ports_in_a_row(count)
    return [*range(first, first + count)]


def free_ports_in_a_row(count: int) -> int:
    """The first of so many ports in a row that nothing listens on."""
    while True:
        first = random.choice(_PORTS[: len(_PORTS) - count])
        with suppress(OSError), ExitStack() as held:
            for port in range(first, first + count):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
