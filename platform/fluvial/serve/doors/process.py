"""
What the processes of doors have in common: what they are given, and what they say.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from fluvial.query import jail, sockets


def given() -> dict[str, Any]:
    """
    What the server gives its process. What a terminal sends to all processes is the server's to judge.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return dict(json.loads(sys.argv[1]))


def wall_in(asked: dict[str, Any], readable: list[Path], ports: jail.Ports | None) -> jail.Walls:
    """
    Wall the process in, if it is to be; it ends where that fails, and in any case when the server does.
    """
    if not asked["confined"]:
        jail.end_with_parent()
        return jail.Walls(network=False, files=False)
    walls = jail.enter_in_reach(readable, Path(asked["scratch"]), ports)
    if not walls.files:
        sys.exit("the kernel does not keep its process from files: --allow-unconfined starts it all the same")
    # Java asks for the machine's interfaces by a socket for datagrams.
    held = sockets.internet_only(datagrams=ports is None)
    return jail.Walls(network=walls.network and held, files=True)


def say_ready(**said: bool) -> None:
    """
    Tell the server that clients may come, and what it tells its user of that.
    """
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def wait_for_the_end() -> None:
    """
    Return when the server wants this process to end, or has ended itself.
    """
    while os.read(0, 1):
        pass
