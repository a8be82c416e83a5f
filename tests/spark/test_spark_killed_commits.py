"""A driver is killed at each step of a commit: what it had committed is there once, and nothing else is."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import killed_driver
import pytest
from killed_driver import APPEND_STEPS, STEPS, table_of
from log_topic import Schemas, Topic
from plain_fold import SCHEMA, random_events

from fluvial.config import Settings
from fluvial.delta.log import TableLog
from fluvial.delta.stamp import read_position
from fluvial.tables.drive.runner import materialize

pytestmark = pytest.mark.spark

SECONDS_MAX = 240
ATTEMPTS_MAX = 3
IN_TURN = pytest.mark.rota  # a Spark for each step


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        pytest.param("state", ["commit begun"], id="state, one step"),
        pytest.param("history", APPEND_STEPS, id="history", marks=IN_TURN),
        pytest.param("compacted", STEPS, id="compacted", marks=IN_TURN),
        pytest.param("state", STEPS, id="state", marks=IN_TURN),
    ],
)
def test_a_driver_killed_at_a_step_leaves_whole_batches_once(
    kind: str, steps: Sequence[str], spark: Any, settings: Settings, platform: Any, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(SCHEMA, partitions=2)
    table = table_of(kind, topic.name)
    log = TableLog(spark, f"{settings.warehouse}/{table.table.replace('.', '/')}")
    topic.send(random_events(1, 40, partitions=2))
    materialize(table, settings, spark, schemas=schemas)
    for number, step in enumerate(steps):
        topic.send(random_events(number + 2, 40, partitions=2))
        before = read_position(log, table.table)
        assert before.version is not None
        is_committed = step in {"committed", "shown"}
        for _ in range(ATTEMPTS_MAX):
            assert killed(step, kind, topic, settings, platform.registry_url) == -signal.SIGKILL
            after = read_position(log, table.table)
            # Whoever watches the folder may see a file only when its commit is there as well.
            if step != "files written" or after.version == before.version:
                break
            topic.send(random_events(number + 20, 10, partitions=2))
            before = after
        assert after.version == before.version + is_committed, step
        if not is_committed:
            assert after.ends == before.ends
        result = materialize(table, settings, spark, schemas=schemas)
        assert result.skipped == is_committed, step
    quiet = replace(settings, warehouse=f"{settings.warehouse}-quiet")
    materialize(table, quiet, spark, schemas=schemas)
    found = spark.read.format("delta").load(log.path)
    expected = spark.read.format("delta").load(f"{quiet.warehouse}/{table.table.replace('.', '/')}")
    assert sorted(map(str, found.collect())) == sorted(map(str, expected.select(found.columns).collect()))


def killed(step: str, kind: str, topic: Topic, settings: Settings, registry_url: str) -> int:
    """Run a driver of its own, which kills itself at a step; return the status that it ended with."""
    order = {
        "step": step,
        "kind": kind,
        "topic": topic.name,
        "bootstrap_servers": topic.bootstrap_servers,
        "registry_url": registry_url,
        "warehouse": settings.warehouse,
    }
    words = [sys.executable, killed_driver.__file__, json.dumps(order)]
    output = Path(f"{settings.warehouse}-driver.log")
    with output.open("a") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        try:
            return process.wait(SECONDS_MAX)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
