"""
`fluvial serve --connect-port`: the warehouse for clients of Spark Connect, PySpark and notebooks, answered by Sail.

Who reaches it runs code: a path reads any file, a function of Python's runs in the server. So it listens on 127.0.0.1
alone, and its process sees the warehouse, which it cannot write, and its own program.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from fluvial.extras import needed
from fluvial.serve.doors.door import HOST, Door, free_port, walled

TITLE = "Spark Connect"
_MEMORY_BYTES = 2 << 30


def connect_door(warehouse: str, port: int, *, allow_unconfined: bool) -> Door:
    """
    The door of a warehouse on this machine. Raises :class:`~fluvial.serve.doors.door.DoorError`.
    """
    with needed("serve"):
        import pysail  # noqa: F401

    port = free_port("--connect-port", port)
    confined = walled(TITLE, allow_unconfined=allow_unconfined)
    return Door(
        title=TITLE,
        module="fluvial.serve.doors.connect_worker",
        given={"port": port, "warehouse": warehouse, "memory_bytes": _MEMORY_BYTES, "confined": confined},
        told=partial(_told, port),
        environment={"RUST_LOG": "error"},
    )


def _told(port: int, walls: Mapping[str, Any]) -> str:
    """What the user is told of a port, and what its clients may do there."""
    if not walls["files"]:
        bounds = "warning: what its clients send runs as you, and nothing keeps it from your files"
    elif not walls["network"]:
        bounds = "it reads the warehouse alone; this kernel (before Linux 6.7) leaves it the network"
    else:
        bounds = "it reads the warehouse alone"
    return f"Spark Connect is served at sc://{HOST}:{port}: {bounds}"
