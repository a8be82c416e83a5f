"""A large registry, 10,000 subjects of 10 versions: how long it takes to start and how much memory it has."""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.schema.registry_process import ask_all, get, node, record, register
from tests.bench.schema.rows import Options, Row

SUBJECTS = 10_000
VERSIONS = 10
CONNECTIONS = 16


def measure(options: Options) -> Iterator[Row]:
    """Register everything, then start again over it."""
    subjects = SUBJECTS // 10 if options.quick else SUBJECTS
    schemas = [record(4 + version) for version in range(VERSIONS)]
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder) / "node"
        with node(data_dir) as running:
            yield Row(what="an empty node starts", value=running.started_seconds, unit="s")
            yield Row(what="an empty node has", value=running.resident_mebibytes(), unit="MiB")
            began = time.perf_counter()
            for version, schema in enumerate(schemas):
                # Subjects do not share schemas in real life, so each names its own record.
                requests = [
                    register(f"subject-{number}-value", schema.replace("Reading", f"Reading{number}"))
                    for number in range(subjects)
                ]
                asyncio.run(ask_all(running.url, requests, CONNECTIONS))
                yield Row(
                    what=f"registering version {version + 1} of {subjects} subjects",
                    value=subjects * (version + 1) / (time.perf_counter() - began),
                    unit="1/s",
                )
            yield Row(
                what=f"{subjects * VERSIONS} schemas after registering", value=running.resident_mebibytes(), unit="MiB"
            )
        last = f"/subjects/subject-{subjects - 1}-value/versions/{VERSIONS}"
        with node(data_dir, ready=last) as running:
            yield Row(what=f"a node with {subjects * VERSIONS} schemas starts", value=running.started_seconds, unit="s")
            yield Row(
                what=f"a node with {subjects * VERSIONS} schemas has", value=running.resident_mebibytes(), unit="MiB"
            )
            seconds = sorted(asyncio.run(ask_all(running.url, [get("/subjects")] * 20, 1)))
            yield Row(what="listing every subject, median", value=seconds[10] * 1000, unit="ms")
