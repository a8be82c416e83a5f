"""
SIGKILL while tables are brought up to date, and the proof after each.

A round starts a driver (`fluvial run --continuous`, or a `fluvial run` of all), waits until it has written something,
and kills one victim after the other at random moments: the broker or an executor of a Spark cluster, after which the
driver has to go on by itself, and in the end mostly the driver with all that it started. After each kill the tables are
compared with the log as they stand. After a round they are brought up to date and compared again, and the topic that a
table is written back to with the table; each change must be in it once.
"""

import io
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from kill_tables_project import PUBLISHED, SCHEMA, TOPIC
from local_platform import LocalPlatform, kill, kill_group, wait_until

from fluvial.config import Settings, load_settings
from fluvial.spark.kafka import topic_bounds
from fluvial.tables import Declaration, Pipeline
from fluvial.tables.declare.project import load_project
from fluvial.tables.drive.runner import materialize
from fluvial.tables.drive.verify import verify
from fluvial.tables.publishing.transactions import VERSION_HEADER
from tests.standalone_spark import StandaloneSpark

PROJECT = "tests.e2e.kill_tables_project"
PARTITIONS = 3
ACCOUNTS = 400
RECORDS_A_SECOND = 100
SECONDS_MAX = 240.0
OTHERS_MAX = 4
"""How many a driver may have to do without before it is killed itself."""
DRIVER, BROKER, EXECUTOR = "driver", "broker", "executor"


@dataclass
class Report:
    """What the rounds came to."""

    kills: Counter[str] = field(default_factory=Counter)
    records: int = 0
    changes: int = 0
    midway: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        shares = ", ".join(f"{victim} {count}" for victim, count in sorted(self.kills.items()))
        return (
            f"{self.kills.total()} kills ({shares}), {self.midway} of them between two tables of one batch; "
            f"{self.records:,} records sent, {self.changes:,} changes written back; {len(self.problems)} differences"
        )


def run_kills(
    platform: LocalPlatform,
    spark: Any,
    kills: int,
    seed: int,
    *,
    executors: bool = False,
    others_max: int = OTHERS_MAX,
    with_commands: bool = True,
    at_each: Callable[[Report], object] = lambda report: None,
) -> Report:
    """Kill something `kills` times, in rounds of at most `others_max` victims before the driver, and compare everything
    after each.

    At the end the commands `fluvial run` and `fluvial table verify` are run, unless `with_commands` is False.
    """
    report = Report()
    with ExitStack() as opened:
        platform.up()
        cluster = opened.enter_context(StandaloneSpark(platform.data_dir / "spark")) if executors else None
        rig = _Rig(platform, spark, random.Random(seed), cluster, report)
        rig.prepare()
        load = opened.enter_context(Load(rig.settings, seed))
        while (left := kills - report.kills.total()) > 0:
            problems = rig.round(rig.draw_victims(others_max)[-left:])
            report.records = load.delivered
            report.problems += [f"after {report.kills.total()} kills of seed {seed}: {each}" for each in problems]
            at_each(report)
        load.stop()
        report.problems += [
            f"at the end: {each}" for each in [*load.failures, *rig.end(load.delivered, with_commands=with_commands)]
        ]
    return report


class Load:
    """Sends payments for as long as it is let; some keys are ended by tombstones."""

    def __init__(self, settings: Settings, seed: int) -> None:
        self.delivered = 0
        self.failures: list[str] = []
        self._dice = random.Random(seed + 1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="payments")
        with settings.registry.client() as registry:
            latest = registry.latest(f"{TOPIC}-value")
        self._header = b"\0" + latest.id.to_bytes(4, "big")
        self._schema = fastavro.parse_schema(json.loads(latest.schema))
        self._producer = Producer(
            {
                "bootstrap.servers": settings.bootstrap_servers,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "linger.ms": 20,
                "log_level": 0,
            }
        )

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_details: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Return once all that was sent is delivered."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            for _ in range(RECORDS_A_SECOND // 10):
                number += 1
                self._send(number)
            self._producer.poll(0)
            self._stop.wait(0.1)
        if self._producer.flush(SECONDS_MAX):
            self.failures.append("payments were not delivered")

    def _send(self, number: int) -> None:
        key = f"account {self._dice.randrange(ACCOUNTS)}"
        value = None
        if self._dice.random() > 0.02:
            body = io.BytesIO()
            city = self._dice.choice(["Oslo", "Łódź", "Lima", None])
            amount = None if self._dice.random() < 0.1 else self._dice.randrange(1000)
            fastavro.schemaless_writer(body, self._schema, {"number": number, "amount": amount, "city": city})
            value = self._header + body.getvalue()
        try:
            self._producer.produce(TOPIC, key=key, value=value, on_delivery=self._told)
        except BufferError:
            self._producer.poll(0.5)

    def _told(self, error: KafkaError | None, _message: Any) -> None:
        if error is None:
            self.delivered += 1
        else:
            self.failures.append(error.str())


class _Rig:
    """The platform, and a Spark session beside the driver that is killed."""

    def __init__(
        self,
        platform: LocalPlatform,
        spark: Any,
        dice: random.Random,
        cluster: StandaloneSpark | None,
        report: Report,
    ) -> None:
        self.platform = platform
        self.spark = spark
        self.dice = dice
        self.cluster = cluster
        self.report = report
        self.settings = load_settings(data_dir=str(platform.data_dir))
        self.declared: Mapping[str, Declaration] = load_project(PROJECT)
        self._changes = _Changes(self.settings)

    def prepare(self) -> None:
        """Make the topic and its contract, and every table once, so that each driver finds work for all."""
        self.platform.run("topic", "create", TOPIC, "--partitions", str(PARTITIONS))
        with self.settings.registry.client() as registry:
            registry.register(f"{TOPIC}-value", json.dumps(SCHEMA))
        self._bring_up()

    def draw_victims(self, others_max: int) -> list[str]:
        """Draw a round: whom a driver has to do without, and at last mostly the driver itself."""
        known = (BROKER, EXECUTOR) if self.cluster else (BROKER,)
        others = self.dice.choices(known, k=self.dice.randint(0, others_max))
        return others if others and self.dice.random() < 0.2 else [*others, DRIVER]

    def round(self, victims: Sequence[str]) -> list[str]:
        """Run a driver, kill the victims, run again, compare; the differences."""
        before = self._versions()
        continuous = victims[0] != DRIVER or self.dice.random() < 0.7
        words = ["run", "--project", PROJECT, *(["--continuous"] if continuous else ["all"])]
        driver = self.platform.start(*words, *(self.cluster.words if self.cluster else ()))
        problems: list[str] = []
        try:
            self._until_moved(before, driver)
            for victim in victims:
                time.sleep(self.dice.random() * 3)
                self._kill(victim, driver)
                if victim != DRIVER:
                    # Who was not killed goes on by itself.
                    self._until_moved(self._versions(), driver)
                problems += [f"{victim} killed: {each}" for each in self._differences()]
            if victims[-1] != DRIVER:
                driver.send_signal(signal.SIGTERM)
                if driver.wait(SECONDS_MAX) != 0:
                    return [*problems, f"the driver ended with {driver.returncode}"]
        finally:
            if driver.poll() is None:
                kill_group(driver)
        self._bring_up()
        return [*problems, *self._differences(whole=True), *self._changes.problems()]

    def end(self, delivered: int, *, with_commands: bool) -> list[str]:
        """All that was sent, once nothing more is."""
        if with_commands:
            self.platform.run("run", "--project", PROJECT, "all")
            self.platform.run("table", "verify", "--project", PROJECT)
        else:
            self._bring_up()
        rows = self.spark.read.format("delta").load(f"{self.settings.warehouse}/history/{TOPIC}").count()
        problems = [] if rows == delivered else [f"history.{TOPIC} has {rows} rows of {delivered} records"]
        problems += self._changes.problems()
        self.report.changes = self._changes.count
        return problems

    def _kill(self, victim: str, driver: "subprocess.Popen[str]") -> None:
        if victim == BROKER:
            kill(self.platform.node_pid())
            self.platform.up()
        elif victim == EXECUTOR:
            assert self.cluster is not None
            wait_until(lambda: bool(self.cluster and self.cluster.executors()), SECONDS_MAX)
            kill(self.dice.choice(self.cluster.executors()).pid)
        else:
            # A one-shot run may be over by itself.
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait(30)
        self.report.kills[victim] += 1
        versions = {self._ends(name) for name in (f"history.{TOPIC}", f"compacted.{TOPIC}", "state.accounts")}
        self.report.midway += len(versions) > 1

    def _until_moved(self, before: Mapping[str, int], driver: "subprocess.Popen[str]") -> None:
        wait_until(lambda: self._versions() != before or driver.poll() is not None, SECONDS_MAX)
        assert driver.poll() in {None, 0}, (self.platform.data_dir / "started.log").read_text()[-4000:]

    def _versions(self) -> dict[str, int]:
        return self.platform.versions()

    def _ends(self, table: str) -> str:
        from fluvial.delta.log import TableLog
        from fluvial.delta.stamp import read_position

        path = f"{self.settings.warehouse}/{table.replace('.', '/')}"
        return str(sorted(read_position(TableLog(None, path), table).ends.items()))

    def _bring_up(self) -> None:
        """Run every declaration to where its topic ends now."""
        with self.settings.registry.client() as registry:
            for declaration in self.declared.values():
                materialize(declaration, self.settings, self.spark, schemas=registry)

    def _differences(self, *, whole: bool = False) -> list[str]:
        """What differs from the log; a publication is of one version only when it is `whole`."""
        problems = []
        with self.settings.registry.client() as registry:
            for name, declaration in self.declared.items():
                if isinstance(declaration, Pipeline) or (name.startswith("topics.") and not whole):
                    continue
                verdict = verify(declaration, self.settings, self.spark, schemas=registry)
                if not verdict.is_exact:
                    shown = ", ".join(f"{each.where} {each.what}" for each in verdict.differences)
                    problems.append(f"{name}: {verdict.different} differences: {shown}")
        return problems


class _Changes:
    """Reads the topic that a table is written back to, and what a reader of it may never see."""

    def __init__(self, settings: Settings) -> None:
        self.count = 0
        self._settings = settings
        self._places: dict[int, int] = {}
        self._versions: dict[bytes, int] = {}

    def problems(self) -> list[str]:
        """What came since the last time and was there before, or came too late."""
        ends = topic_bounds(self._settings.cluster, PUBLISHED).ends
        consumer = Consumer(
            {
                "bootstrap.servers": self._settings.bootstrap_servers,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
            }
        )
        problems: list[str] = []
        try:
            consumer.assign([TopicPartition(PUBLISHED, each, self._places.get(each, 0)) for each in ends])
            waiting = set(ends)
            while waiting:
                message = consumer.poll(SECONDS_MAX)
                assert message is not None, f"the end of {PUBLISHED} is not reached"
                if message.error() is not None:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    self._places[message.partition()] = message.offset()
                    waiting.discard(message.partition())
                    continue
                self.count += 1
                version = int(dict(message.headers())[VERSION_HEADER])
                before = self._versions.get(message.key(), -1)
                if version <= before:
                    problems.append(f"{PUBLISHED}: {message.key()!r} of version {version} after version {before}")
                self._versions[message.key()] = version
        finally:
            consumer.close()
        return problems


def session(folder: Path) -> Any:
    """A Spark session beside the drivers that are killed."""
    from fluvial.spark.session import build_session

    conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}
    return build_session(Settings(warehouse=str(folder), spark_master="local[2]", spark_conf=conf), "fluvial kill test")
