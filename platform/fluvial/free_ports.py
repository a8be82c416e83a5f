"""Free ports for processes that listen a while after they are started, and again where they start again."""

import errno
import random
import socket

# Below what systems give to outgoing connections (from 32,768 on Linux, from 49,152 elsewhere): one of these would take
# the port before the process listens there.
_PORTS = range(20_000, 32_000)


def free_ports(host: str, count: int = 1) -> int:
    """
    Return the first of `count` ports beside each other of `host`, an address of this machine, that nobody has now.

    Raises OSError where there are none, or the address is none of this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    starts = _PORTS[: len(_PORTS) - count + 1 : count]
    for first in random.sample(starts, len(starts)):
        if all(_is_free(family, host, port) for port in range(first, first + count)):
            return first
    raise OSError(errno.EADDRINUSE, f"no {count} ports beside each other are free from {_PORTS[0]} to {_PORTS[-1]}")


def _is_free(family: socket.AddressFamily, host: str, port: int) -> bool:
    with socket.socket(family) as trial:
        try:
            trial.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
    return True
