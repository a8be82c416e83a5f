"""Reads a second and how long one waits, as a fleet of serializers that starts makes them."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.schema.registry_process import ask_all, get, node, record, register
from tests.bench.schema.rows import Options, Row

SUBJECTS = 200
REQUESTS = 20_000
CONNECTIONS = 16


def measure(options: Options) -> Iterator[Row]:
    """Measure our registry, and the peer where one is named."""
    with tempfile.TemporaryDirectory() as folder, node(Path(folder) / "node") as running:
        yield from _rows("", running.url, options)
    if options.peer is not None:
        yield from _rows("peer: ", options.peer, options)


def _rows(who: str, url: str, options: Options) -> Iterator[Row]:
    subjects = [f"bench-{number}-value" for number in range(SUBJECTS)]
    schemas = [record(10 + number) for number in range(SUBJECTS)]
    asyncio.run(ask_all(url, [register(*each) for each in zip(subjects, schemas, strict=True)], 4))
    count = REQUESTS // 10 if options.quick else REQUESTS
    kinds = {
        "a schema by its id": [get(f"/schemas/ids/{1 + number % SUBJECTS}") for number in range(count)],
        "the latest version": [get(f"/subjects/{subjects[n % SUBJECTS]}/versions/latest") for n in range(count)],
        "registering what is there": [register(subjects[n % 50], schemas[n % 50]) for n in range(count // 4)],
    }
    for what, requests in kinds.items():
        asyncio.run(ask_all(url, requests[:200], CONNECTIONS))
        began = time.perf_counter()
        seconds = asyncio.run(ask_all(url, requests, CONNECTIONS))
        took = time.perf_counter() - began
        percentiles = statistics.quantiles(seconds, n=100)
        yield Row(what=f"{who}{what}", value=len(seconds) / took, unit="1/s")
        yield Row(what=f"{who}{what}, median of {CONNECTIONS} at once", value=percentiles[49] * 1000, unit="ms")
        yield Row(what=f"{who}{what}, p99 of {CONNECTIONS} at once", value=percentiles[98] * 1000, unit="ms")
