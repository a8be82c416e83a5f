"""
The main job on somebody else's clusters: Apache Kafka and a Spark standalone cluster, named on the command line.

Nothing else changes: the declarations, the tables and the answers are those of the local platform. It takes minutes:
FLUVIAL_TEST_CLUSTERS=1 asks for it.
"""

import os
from collections.abc import Iterator
from datetime import UTC, datetime

import csv_truth
import pytest
from existing_clusters import ExistingClusters
from local_platform import LocalPlatform, kill, wait_until
from test_kill import assert_tables_are_exact

from tests.peers.kafka_jars import lacking

pytestmark = [
    pytest.mark.skipif(lacking() is not None, reason=str(lacking())),
    pytest.mark.skipif("FLUVIAL_TEST_CLUSTERS" not in os.environ, reason="minutes long: set FLUVIAL_TEST_CLUSTERS=1"),
]

FIRST_DAYS = datetime(2013, 1, 3, tzinfo=UTC)


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExistingClusters]:
    with ExistingClusters(tmp_path_factory.mktemp("existing")) as clusters:
        yield clusters


def demo_words(clusters: ExistingClusters, until: datetime) -> tuple[str, ...]:
    return ("demo", "--until", f"{until:%Y-%m-%d}", *clusters.words)


def test_the_same_answers_though_an_executor_is_killed(clusters: ExistingClusters, platform: LocalPlatform) -> None:
    job = platform.start(*demo_words(clusters, FIRST_DAYS))
    first_commit = platform.data_dir / "warehouse/compacted/airlines/_delta_log" / f"{0:020d}.json"
    wait_until(lambda: first_commit.exists() or job.poll() is not None)
    kill(clusters.executors()[0].pid)
    assert job.wait(timeout=900) == 0, (platform.data_dir / "started.log").read_text()[-4000:]
    assert_tables_are_exact(platform, FIRST_DAYS)
    assert len(platform.ask("select * from compacted.airlines")) == len(list(csv_truth.rows("airlines.csv")))
    platform.run("table", "verify", *clusters.words)
    assert not list(platform.data_dir.glob("node-*")), "no broker of ours had a part in it"
