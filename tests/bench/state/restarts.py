"""
The first batch of a driver on a large table: with the index of its keys that an earlier one saved, and without.
"""

import tempfile
from pathlib import Path
from statistics import median

from rich.progress import Progress

from fluvial.config import Settings
from fluvial.delta import saved_keys
from fluvial.spark.session import build_session
from tests.bench.state.events import Source, broker
from tests.bench.state.rows import Work
from tests.bench.state.tables import Ours

KEYS = 10_000_000
EVENTS = 10_000
ROUNDS = 3
SAVED, READ, NEXT = "saved", "read", "next"


def measure(progress: Progress) -> dict[str, float]:
    """Median seconds of a driver's first batch with a saved index, of one that reads all keys, and of their second."""
    seconds: dict[str, list[float]] = {SAVED: [], READ: [], NEXT: []}
    task = progress.add_task(f"first batch, {KEYS:,} keys", total=2 * ROUNDS + 2)
    with tempfile.TemporaryDirectory(prefix="bench-state-") as temporary:
        folder = Path(temporary)
        with broker(folder / "log") as servers:
            source = Source(servers, KEYS)
            source.write_all_keys()
            conf = {"spark.driver.memory": "4g"}
            spark = build_session(Settings(warehouse=str(folder / "ours"), spark_conf=conf))
            for number in range(2 * ROUNDS + 1):
                # A driver's first: it has found no key yet.
                ours = Ours(spark, folder / "ours", servers, Work.LATEST)
                if number == 0:
                    ours.run(KEYS)
                    progress.advance(task)
                is_read = number % 2 == 0
                if is_read:
                    saved_keys.remove(ours.path)
                source.write(EVENTS)
                (first,) = ours.run(EVENTS)
                source.write(EVENTS)
                (second,) = ours.run(EVENTS)
                if number:  # Spark has compiled its plans
                    seconds[READ if is_read else SAVED].append(first)
                    seconds[NEXT].append(second)
                progress.advance(task)
    return {name: median(each) for name, each in seconds.items()}
