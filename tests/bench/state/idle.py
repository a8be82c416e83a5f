"""
A hundred topics with a table each in one session, and nothing new in any: what a round costs.
"""

import tempfile
import time
from pathlib import Path
from statistics import median

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.progress import Progress

from fluvial.config import Settings
from fluvial.spark.kafka import TopicEnds
from fluvial.spark.session import build_session
from fluvial.tables import history
from fluvial.tables.drive.runner import materialize
from tests.bench.state.events import Contract, broker, encoded

TOPICS = 100
ROUNDS = 7


def measure(progress: Progress) -> tuple[float, float]:
    """
    Median seconds of a round of `fluvial run --continuous`, which asks the cluster once, and of a round that asks each
    table whether it is up to date, as `fluvial run` does.
    """
    task = progress.add_task(f"{TOPICS} idle topics", total=TOPICS + ROUNDS)
    names = [f"readings-{number:03d}" for number in range(TOPICS)]
    with tempfile.TemporaryDirectory(prefix="bench-state-") as temporary:
        folder = Path(temporary)
        with broker(folder / "log") as servers:
            admin = AdminClient({"bootstrap.servers": servers})
            for made in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
                made.result(60)
            producer = Producer({"bootstrap.servers": servers})
            for name in names:
                producer.produce(name, key=b"sensor-1", value=encoded(b"sensor-1", 1))
            producer.flush(60)
            settings = Settings(warehouse=str(folder / "ours"), bootstrap_servers=servers)
            spark = build_session(settings)
            tables = [history(name) for name in names]
            for table in tables:
                assert not materialize(table, settings, spark, schemas=Contract()).skipped
                progress.advance(task)
            asked, passed = [], []
            with TopicEnds(settings.cluster) as topics:
                for _ in range(ROUNDS):
                    began = time.monotonic()
                    topics.of(set(names))
                    asked.append(time.monotonic() - began)
                    began = time.monotonic()
                    for table in tables:
                        assert materialize(table, settings, spark, schemas=Contract()).skipped
                    passed.append(time.monotonic() - began)
                    progress.advance(task)
    return median(asked), median(passed)
