"""
The process of `--connect-port`: Sail behind Spark Connect, walled in, and the names that its sessions know.

It is started by :mod:`fluvial.serve.doors.connect`. Names and Sail are of one process, so that there is one to bound
and to end.
"""

import json
import os
from pathlib import Path
from threading import Thread
from typing import Any

from fluvial.query import jail
from fluvial.query.sail import limit_memory
from fluvial.serve.doors.names import Names, NamesServer
from fluvial.serve.doors.process import given, say_ready, wait_for_the_end, wall_in


def main() -> None:
    """
    Serve until stdin ends.
    """
    asked = given()
    port, memory_bytes = int(asked["port"]), int(asked["memory_bytes"])
    names = NamesServer(Names(asked["warehouse"]))
    # Threads are held to what the thread that starts them is held to: none may be there before the walls are.
    ports = jail.Ports(bound=[port], reached=[names.server_port])
    walls = wall_in(asked, [Path(asked["warehouse"])], ports)
    Thread(target=names.serve_forever, name="names", daemon=True).start()
    os.environ.update(_settings(names.url, memory_bytes, asked["scratch"]))
    from pysail.spark import SparkConnectServer

    server = SparkConnectServer("127.0.0.1", port)
    server.start(background=True)
    # Statements are refused memory beyond the first half by Sail itself, and the process what is beyond both.
    limit_memory(os.getpid(), 2 * memory_bytes)
    say_ready(network=walls.network, files=walls.files)
    wait_for_the_end()
    # Sail's own threads are not waited for: nothing of theirs is kept.
    os._exit(0)


def _settings(names: str, memory_bytes: int, scratch: str) -> dict[str, str]:
    """Sail's own, by its environment variables."""
    settings: dict[str, Any] = {
        "CATALOG__LIST": f'[{{name="fluvial", type="iceberg-rest", uri="{names}"}}]',
        "CATALOG__DEFAULT_CATALOG": "fluvial",
        "RUNTIME__MEMORY_POOL__TYPE": "greedy",
        "RUNTIME__MEMORY_POOL__GREEDY__MAX_SIZE": memory_bytes,
        "RUNTIME__TEMPORARY_FILES__PATHS": json.dumps([scratch]),
    }
    return {f"SAIL_{key}": str(value) for key, value in settings.items()}


if __name__ == "__main__":
    main()
