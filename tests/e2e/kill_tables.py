"""
SIGKILL while tables are brought up to date, and the proof after each.

A round starts a driver (`fluvial run --continuous`, or a `fluvial run` of all), waits until it has written something,
and kills one victim after the other at random moments: the broker or an executor of a Spark cluster, after which the
driver has to go on by itself, and in the end mostly the driver with all that it started. After each kill the tables are
compared as they stand, with the log or with the batch query. After a round they are brought up to date and compared
again, and the topic that a table is written back to with the table; each change must be in it once.
"""

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition
from kill_tables_load import Load
from kill_tables_project import PUBLISHED, SCHEMA, TOPIC
from local_platform import LocalPlatform, kill, kill_group, wait_until

from fluvial.config import Settings, load_settings
from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import MartStamp, newest_made
from fluvial.delta.stamp import read_position
from fluvial.errors import FluvialError
from fluvial.registry.client import RegistryClient
from fluvial.spark.kafka import topic_bounds
from fluvial.tables import Declaration, Pipeline
from fluvial.tables.declare.declarations import Publication
from fluvial.tables.declare.project import load_project
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.verify import verify
from fluvial.tables.publishing.transactions import VERSION_HEADER
from tests.standalone_spark import StandaloneSpark

PARTITIONS = 3
SECONDS_MAX = 240.0
OTHERS_MAX = 4
"""How many a driver may have to do without before it is killed itself."""
COMPARED_AT_ONCE = 3
DRIVER, BROKER, EXECUTOR = "driver", "broker", "executor"


@dataclass(frozen=True)
class Graph:
    """
    The declarations of a project, whose tables are killed.

    Its `topics` are written to, and to `published` a table is written back; drivers have `environment` besides. A
    victim is killed within `seconds` of the first commit. After so many rounds, `settled_every`, all is brought up to
    date, and else by the next driver.
    """

    project: str
    topics: Sequence[str]
    published: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 3.0
    settled_every: int = 1


TABLES = Graph("tests.e2e.kill_tables_project", (TOPIC,), published=PUBLISHED)


@dataclass
class Report:
    """What the rounds came to."""

    kills: Counter[str] = field(default_factory=Counter)
    records: int = 0
    changes: int = 0
    midway: int = 0
    roads: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        shares = ", ".join(f"{victim} {count}" for victim, count in sorted(self.kills.items()))
        roads = ", ".join(f"{count:,} by {road}" for road, count in sorted(self.roads.items()))
        refreshed = f"marts refreshed {roads}; " if roads else ""
        return (
            f"{self.kills.total()} kills ({shares}), {self.midway} of them between two tables of one batch; "
            f"{self.records:,} records sent, {self.changes:,} changes written back; {refreshed}"
            f"{len(self.problems)} differences"
        )


def run_kills(
    platform: LocalPlatform,
    spark: Any,
    kills: int,
    seed: int,
    *,
    graph: Graph = TABLES,
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
        rig = _Rig(graph, platform, spark, random.Random(seed), cluster, report)
        rig.prepare()
        load = opened.enter_context(Load(rig.settings, graph.topics, seed))

        def tell() -> None:
            report.records = load.delivered.total()
            at_each(report)

        rounds = 0
        while (left := kills - report.kills.total()) > 0:
            rig.round(rig.draw_victims(others_max)[-left:], tell)
            rounds += 1
            if rounds % graph.settled_every == 0:
                rig.settle()
        load.stop()
        rig.end(load, with_commands=with_commands)
        tell()
    return report


class _Rig:
    """The platform, and a Spark session beside the driver that is killed."""

    def __init__(
        self,
        graph: Graph,
        platform: LocalPlatform,
        spark: Any,
        dice: random.Random,
        cluster: StandaloneSpark | None,
        report: Report,
    ) -> None:
        self.graph = graph
        self.platform = replace(platform, inherited={**platform.inherited, **graph.environment})
        self.spark = spark
        self.dice = dice
        self.cluster = cluster
        self.report = report
        self.settings = load_settings(data_dir=str(platform.data_dir))
        self.declared: Mapping[str, Declaration] = load_project(graph.project)
        self._changes = None if graph.published is None else _Changes(self.settings, graph.published)

    def prepare(self) -> None:
        """Make the topics and their contracts, and every table once, so that each driver finds work for all."""
        with self.settings.registry.client() as registry:
            for topic in self.graph.topics:
                self.platform.run("topic", "create", topic, "--partitions", str(PARTITIONS))
                registry.register(f"{topic}-value", json.dumps(SCHEMA))
        self._bring_up()

    def draw_victims(self, others_max: int) -> list[str]:
        """Draw a round: whom a driver has to do without, and at last mostly the driver itself."""
        known = (BROKER, EXECUTOR) if self.cluster else (BROKER,)
        others = self.dice.choices(known, k=self.dice.randint(0, others_max))
        return others if others and self.dice.random() < 0.2 else [*others, DRIVER]

    def round(self, victims: Sequence[str], tell: Callable[[], None]) -> None:
        """Run a driver, kill the victims, and compare after each."""
        before = self._versions()
        continuous = victims[0] != DRIVER or self.dice.random() < 0.7
        words = ["run", "--project", self.graph.project, *(["--continuous"] if continuous else ["all"])]
        driver = self.platform.start(*words, *(self.cluster.words if self.cluster else ()))
        try:
            self._until_moved(before, driver)
            for victim in victims:
                time.sleep(self.dice.random() * self.graph.seconds)
                self._kill(victim, driver)
                if victim != DRIVER:
                    # Who was not killed goes on by itself.
                    self._until_moved(self._versions(), driver)
                self._note(f"{victim} killed", self._differences())
                tell()
            if victims[-1] != DRIVER:
                driver.send_signal(signal.SIGTERM)
                if driver.wait(SECONDS_MAX) != 0:
                    self._note("stopped", [f"the driver ended with {driver.returncode}"])
        finally:
            if driver.poll() is None:
                kill_group(driver)

    def settle(self) -> None:
        """Bring everything up to date, and compare."""
        self._bring_up()
        self._note("up to date", [*self._differences(whole=True), *self._change_problems()])

    def end(self, load: Load, *, with_commands: bool) -> None:
        """All that was sent, once nothing more is."""
        if with_commands:
            self.platform.run("run", "--project", self.graph.project, "all")
            self.platform.run("table", "verify", "--project", self.graph.project)
        else:
            self._bring_up()
        self._note("at the end", [*load.failures, *self._change_problems()])
        for topic in self.graph.topics:
            rows = self.spark.read.format("delta").load(self._path(f"history.{topic}")).count()
            if rows != load.delivered[topic]:
                self._note("at the end", [f"history.{topic} has {rows} rows of {load.delivered[topic]} records"])
        self.report.roads = self._roads()

    def _note(self, when: str, problems: Sequence[str]) -> None:
        self.report.problems += [f"{when}, after {self.report.kills.total()} kills: {each}" for each in problems]

    def _change_problems(self) -> list[str]:
        """What was written back to the topic otherwise than it should be."""
        if self._changes is None:
            return []
        problems = self._changes.problems()
        self.report.changes = self._changes.count
        return problems

    def _roads(self) -> Counter[str]:
        """By which roads the marts were refreshed, all in all."""
        logs = [TableLog(None, self._path(name)) for name, each in self.declared.items() if isinstance(each, Pipeline)]
        stamps = [MartStamp.of(commit) for log in logs for commit in log.whole_commits()]
        return Counter(stamp.refresh.road for stamp in stamps if stamp is not None and stamp.refresh is not None)

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
        self.report.midway += self._is_midway()

    def _until_moved(self, before: Mapping[str, int], driver: "subprocess.Popen[str]") -> None:
        wait_until(lambda: self._versions() != before or driver.poll() is not None, SECONDS_MAX)
        assert driver.poll() in {None, 0}, (self.platform.data_dir / "started.log").read_text()[-4000:]

    def _versions(self) -> dict[str, int]:
        return self.platform.versions()

    def _path(self, table: str) -> str:
        return f"{self.settings.warehouse}/{table.replace('.', '/')}"

    def _is_midway(self) -> bool:
        """Whether of two tables that read the same one has read more."""
        read: dict[str, set[str]] = defaultdict(set)
        for name, declaration in self.declared.items():
            log = TableLog(None, self._path(name))
            if isinstance(declaration, Pipeline):
                made = newest_made(log)
                for table, at in {} if made is None else made.stamp.inputs.items():
                    read[table].add(str(at.version))
            elif not isinstance(declaration, Publication):
                read[declaration.topic].add(str(sorted(read_position(log, name).ends.items())))
        return any(len(each) > 1 for each in read.values())

    def _bring_up(self) -> None:
        """Run every declaration to where its topic ends now."""
        with self.settings.registry.client() as registry:
            for declaration in self.declared.values():
                materialize(declaration, self.settings, self.spark, schemas=registry)

    def _differences(self, *, whole: bool = False) -> list[str]:
        """What differs from the log or the batch query; a publication is of one version only when it is `whole`."""
        compared = [name for name in self.declared if whole or not name.startswith("topics.")]
        with self.settings.registry.client() as registry, ThreadPoolExecutor(COMPARED_AT_ONCE) as pool:
            found = pool.map(lambda name: self._difference(name, registry), compared)
            return [each for each in found if each is not None]

    def _difference(self, name: str, registry: RegistryClient) -> str | None:
        try:
            verdict = verify(self.declared[name], self.settings, self.spark, schemas=registry)
        except FluvialError as error:
            return f"{name}: cannot be compared: {error}"
        if verdict.is_exact:
            return None
        shown = ", ".join(f"{each.where} {each.what}" for each in verdict.differences)
        return f"{name}: {verdict.different} differences: {shown}"


class _Changes:
    """Reads the topic that a table is written back to, and what a reader of it may never see."""

    def __init__(self, settings: Settings, topic: str) -> None:
        self.count = 0
        self._topic = topic
        self._settings = settings
        self._places: dict[int, int] = {}
        self._versions: dict[bytes, int] = {}

    def problems(self) -> list[str]:
        """What came since the last time and was there before, or came too late."""
        ends = topic_bounds(self._settings.cluster, self._topic).ends
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
            consumer.assign([TopicPartition(self._topic, each, self._places.get(each, 0)) for each in ends])
            waiting = set(ends)
            while waiting:
                message = consumer.poll(SECONDS_MAX)
                assert message is not None, f"the end of {self._topic} is not reached"
                if message.error() is not None:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    self._places[message.partition()] = message.offset()
                    waiting.discard(message.partition())
                    continue
                self.count += 1
                version = int(dict(message.headers())[VERSION_HEADER])
                before = self._versions.get(message.key(), -1)
                if version <= before:
                    problems.append(f"{self._topic}: {message.key()!r} of version {version} after version {before}")
                self._versions[message.key()] = version
        finally:
            consumer.close()
        return problems


def session(folder: Path) -> Any:
    """A Spark session beside the drivers that are killed."""
    from fluvial.spark.session import build_session

    conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}
    return build_session(Settings(warehouse=str(folder), spark_master="local[2]", spark_conf=conf), "fluvial kill test")
