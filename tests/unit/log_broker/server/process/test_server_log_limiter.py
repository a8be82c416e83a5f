"""What goes wrong for ever is told at once, then now and then with a count; what comes and goes no more often."""

import asyncio
import logging
from pathlib import Path

import pytest
from node_cluster import cluster_of, eventually

from log_broker.core.cluster.controller import CreateTopic
from log_broker.server.process.log_limiter import TELL_SECONDS, RateLimitedLog


class Told:
    """A trouble on a clock of its own, and what it has told."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.seconds = 0.0
        self._caplog = caplog
        caplog.set_level(logging.INFO, "test.trouble")
        self.trouble = RateLimitedLog(logging.getLogger("test.trouble"), lambda: self.seconds)

    @property
    def lines(self) -> list[str]:
        return [f"{record.levelname} {record.getMessage()}" for record in self._caplog.records]


def test_trouble_is_told_at_once_and_then_with_a_count_every_half_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    told = Told(caplog)
    while told.seconds < 2.5 * TELL_SECONDS:
        told.trouble.failed("no answer of %s", "n1")
        told.seconds += 0.5
    again = "WARNING no answer of n1 (60 times in 30 s)"
    assert told.lines == ["WARNING no answer of n1", again, again]


def test_the_end_of_a_trouble_is_told_once_to_who_was_told_of_it(caplog: pytest.LogCaptureFixture) -> None:
    told = Told(caplog)
    told.trouble.recovered("fine")
    told.trouble.failed("no answer")
    told.trouble.recovered("fine")
    told.trouble.recovered("fine")
    assert told.lines == ["WARNING no answer", "INFO fine"]


def test_what_comes_and_goes_is_told_no_more_often_than_what_stays(caplog: pytest.LogCaptureFixture) -> None:
    told = Told(caplog)
    while told.seconds < TELL_SECONDS:
        told.trouble.failed("no answer")
        told.trouble.recovered("fine")
        told.seconds += 0.5
    told.trouble.failed("no answer")
    told.trouble.recovered("fine")
    assert told.lines == ["WARNING no answer", "INFO fine", "WARNING no answer (60 times in 30 s)", "INFO fine"]


def test_what_is_rare_is_told_each_time_without_a_count(caplog: pytest.LogCaptureFixture) -> None:
    told = Told(caplog)
    told.trouble.failed("no answer")
    told.seconds += TELL_SECONDS
    told.trouble.failed("no answer")
    assert told.lines == ["WARNING no answer", "WARNING no answer"]


async def test_a_leader_whose_address_takes_connections_and_resets_them_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "log_broker.server.replication.leader_fetching")
    resets = 0

    async def reset(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal resets
        resets += 1
        writer.transport.abort()

    # A session that does not end while this test looks: the dead node keeps its leadership.
    async with cluster_of(tmp_path, 3, {"broker.session.timeout.ms": "120000"}) as cluster:
        gone = next(node_id for node_id, node in cluster.nodes.items() if not node.is_controller)
        placed = {0: [gone, *(node_id for node_id in cluster.nodes if node_id != gone)]}
        command = CreateTopic(name="t", topic_id="0" * 31 + "7", assignments=placed)
        await cluster.controller.authority.create_topic(command)
        follower = next(node for node_id, node in cluster.nodes.items() if node_id == placed[0][1])
        await eventually(lambda: (runtime := follower.logs.get("t", 0)) is not None and not runtime.is_leader)
        await cluster.kill(gone)
        async with await asyncio.start_server(reset, "127.0.0.1", cluster.ports[gone]):
            await eventually(lambda: resets > 20)
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if f"node {gone} at" in line]) <= 2, "one line of each follower"
    assert not [line for line in lines if line == f"node {gone} is fetched from again"]
