"""
A driver that erases a key and may be killed while it does; as a program, it kills itself and its JVM.

    python tests/spark/killed_erasure.py '{"step": "listing the key", "moment": "begun", "topic": "t", …}'

"begun": when the erasure says that it begins the step. "written": as soon as a file of the warehouse came or went after
that. Without a step it comes to its end, and ends with 0.
"""

import json
import sys
import threading
from pathlib import Path

from erased_tables import KEY, tables_of
from killed_driver import kill, settings_of

from fluvial.spark.session import build_session
from fluvial.tables.erasure.erase import Say, erase

BEGUN, WRITTEN = "begun", "written"


def killing_at(step: str, moment: str, warehouse: Path) -> Say:
    """Hear of the steps of an erasure, and kill this process at a moment of the first that begins like `step`."""
    waiting = [step] if step else []

    def say(line: str) -> None:
        if not waiting or waiting[0] not in line:
            return
        waiting.clear()
        if moment == BEGUN:
            kill()
        threading.Thread(target=kill_at_a_file, args=(warehouse, files(warehouse)), daemon=True).start()

    return say


def files(folder: Path) -> set[str]:
    """The names of all files in it."""
    return {str(path) for path in folder.rglob("*") if path.is_file()}


def kill_at_a_file(folder: Path, before: set[str]) -> None:
    """Kill this process as soon as a file came or went."""
    while files(folder) == before:
        pass
    kill()


def main(order: dict[str, str]) -> None:
    settings = settings_of(order)
    warehouse = Path(settings.warehouse)
    tables = {name: each for name, each in tables_of(order["topic"]).items() if name in order["tables"].split()}
    spark = build_session(settings, "fluvial killed erasure")
    with settings.registry.client() as schemas:
        erase(
            order["topic"],
            KEY.encode(),
            tables,
            settings,
            spark,
            schemas=schemas,
            with_vacuum=True,
            say=killing_at(order["step"], order["moment"], warehouse),
        )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
