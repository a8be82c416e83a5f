"""
How many fatal errors stock producers have while nodes are killed and paused, and which: ours and Apache Kafka.

    python tests/chaos/chaos_fatal.py --seconds 420 --seed 3                 our nodes
    python tests/chaos/chaos_fatal.py --seconds 420 --seed 3 --peer kafka    the same schedule of faults on Apache Kafka

librdkafka puts an idempotent or transactional producer in a fatal state when it cannot say any more what became of its
records; the application has to make a new one. Every fatal error is printed with its time, its code and its reason, and
the producer is replaced.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random

from chaos_cluster import KINDS, Cluster
from chaos_history import History
from chaos_nemesis import Nemesis
from chaos_workloads import Workload
from confluent_kafka import KafkaError, KafkaException, Producer

PARTITIONS = 6
CALL_SECONDS_MAX = 15
FAULTS = ("kill", "kill controller", "pause")


class Replaced(Workload):
    """A producer that is replaced by a new one when it is in a fatal state; `fatal` holds what it said."""

    def __init__(self, servers: str, name: str, seed: int, **config: object) -> None:
        super().__init__(servers, History(), name)
        self.fatal: list[tuple[float, str]] = []
        self.rng = Random(seed)
        self._began = time.monotonic()
        self._config = config
        self._failed = False

    def run(self) -> None:
        while not self._stopping.is_set():
            self._failed = False
            producer = Producer({**self.config(linger_ms=5, **self._config), "error_cb": self._error})
            try:
                self.work_with(producer)
            except KafkaException as error:
                self._error(error.args[0])
                self._stopping.wait(0.5)
            except SystemError:
                # confluent-kafka calls back with an exception pending when a call fails while reports are waiting.
                self._stopping.wait(0.5)
            with suppress(KafkaException):
                producer.flush(5)

    def work_with(self, producer: Producer) -> None:
        """Send numbered records until stopped or failed."""
        for number in count():
            if self._stopping.is_set() or self._failed:
                return
            with suppress(BufferError):
                producer.produce("fatal", str(number), partition=number % PARTITIONS, on_delivery=self._delivered)
            producer.poll(0)
            self._stopping.wait(0.01)

    def _delivered(self, error: KafkaError | None, _message: object) -> None:
        self.done += error is None

    def _error(self, error: KafkaError) -> None:
        if error.fatal() and not self._failed:
            self._failed = True
            self.fatal.append((time.monotonic() - self._began, f"{self.process}: {error.name()}: {error.str()}"))


class Transacting(Replaced):
    """Transactions of some records each; a fifth of them is aborted."""

    def work_with(self, producer: Producer) -> None:
        producer.init_transactions(30)
        while not self._stopping.is_set() and not self._failed:
            try:
                producer.begin_transaction()
                for _ in range(20):
                    partition = self.rng.randrange(PARTITIONS)
                    producer.produce("fatal", b"t", partition=partition, on_delivery=self._delivered)
                    producer.poll(0.01)
                if self.rng.random() < 0.2:
                    self._until_done(producer.abort_transaction)
                else:
                    self._until_done(producer.commit_transaction)
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                self._until_done(producer.abort_transaction)

    def _until_done(self, end: Callable[[float], None]) -> None:
        while True:
            try:
                end(CALL_SECONDS_MAX)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or self._stopping.is_set():
                    raise


def main() -> int:
    """Return 0: what is counted is compared by who reads it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().split("\n")[0])
    parser.add_argument("--peer", choices=sorted(KINDS), default="ours", help="whose nodes (default: ours)")
    parser.add_argument("--seconds", type=float, default=420.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--producers", type=int, default=3, help="idempotent ones, and as many transactional ones")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        cluster = Cluster(Path(folder) / "cluster", kind=options.peer)
        try:
            cluster.start()
            cluster.create_topic("fatal", PARTITIONS, min_insync_replicas="2")
            producers = [
                each
                for number in range(options.producers)
                for each in (
                    Replaced(cluster.bootstrap, f"idempotent {number}", number, enable_idempotence=True),
                    Transacting(
                        cluster.bootstrap,
                        f"transactional {number}",
                        number,
                        transactional_id=f"t-{number}",
                        transaction_timeout_ms=20_000,
                    ),
                )
            ]
            for each in producers:
                each.start()
            Nemesis(cluster, options.seed, say=lambda line: print(line, flush=True), kinds=FAULTS).run(options.seconds)
            for each in producers:
                each.stop()
            for each in producers:
                each.join()
        finally:
            cluster.close()
    fatal = sorted(found for each in producers for found in each.fatal)
    for when, what in fatal:
        print(f"{when:6.1f} s  {what}")
    codes = Counter(what.split(": ")[1] for _, what in fatal)
    print(f"{options.peer}: {sum(each.done for each in producers):,} delivered, {len(fatal)} fatal: {dict(codes)}")
    print("\n".join(problem for each in producers for problem in each.problems))
    return 0


if __name__ == "__main__":
    sys.exit(main())
