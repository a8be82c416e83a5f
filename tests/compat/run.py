"""
Every suite that holds the broker against other people's clients: `make compat`.

    python -m tests.compat.run                    all of them
    python -m tests.compat.run franz-go kafkajs   some; --skip streams: all but these
    python -m tests.compat.run --brokers 3        against three brokers, every topic on all of them
    python -m tests.compat.run --secure           over SASL_SSL, signed in by SCRAM-SHA-512 as a super user
    python -m tests.compat.run --prepare          only fetch and build what the suites need and this machine can have

Each suite gets a line when it begins and one when it ends, with the tests that passed out of all; a table stands at the
end. What may fail or be skipped stands with its reason in `FINDINGS.md`; everything else makes the exit code 1. A suite
that this machine lacks something for is left out, and then the exit code is 77 at best.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

# Its own folder first, as pytest has it: the test modules import each other by their bare names.
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import findings  # noqa: E402
import franz_go  # noqa: E402
import kafkajs_scripts  # noqa: E402
import kaskade_program  # noqa: E402
import librdkafka_tests  # noqa: E402
from findings import Outcome  # noqa: E402

from tests.peers import kafka_jars  # noqa: E402
from tests.rota import LEFT_OUT  # noqa: E402

ROOT = HERE.parents[1]


def say(line: str) -> None:
    """A line of progress, at once."""
    print(line, flush=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """
    One suite: its name in `FINDINGS.md`, what it is, and the modules of this folder that it runs.

    `lacking` says what this machine lacks to run it; one that `brings_brokers` is not run against several.
    """

    name: str
    what: str
    modules: tuple[str, ...]
    lacking: Callable[[], str | None] = lambda: None
    brings_brokers: bool = False


def streams_lacking() -> str | None:
    """As for Kafka's tools."""
    return kafka_jars.lacking(kafka_jars.STREAMS_AND_CONNECT)


def kcat_lacking() -> str | None:
    """As for Kafka's tools."""
    found = shutil.which("kcat") or shutil.which("kafkacat")
    return None if found else "kcat is not installed: apt-get install kcat"


def clients_lacking() -> str | None:
    """As for Kafka's tools: for suites that have every client."""
    return kafka_jars.lacking() or kafkajs_scripts.lacking() or kcat_lacking()


NAMED = (
    Suite(
        name="franz-go",
        what=f"the tests of franz-go {franz_go.VERSION}, pkg/kgo, {franz_go.RECORDS:,} records in each chain",
        modules=("test_franz_go",),
        lacking=franz_go.lacking,
    ),
    Suite(
        name="kafka-tools",
        what=f"the tools and system-test clients of Apache Kafka {kafka_jars.KAFKA_VERSION}",
        modules=("test_kafka_tools", "test_kafka_dump_log"),
        lacking=kafka_jars.lacking,
    ),
    Suite(
        name="between",
        what="what librdkafka, Java, aiokafka, kafka-python and KafkaJS write, each of them and kcat reads",
        modules=("test_between_clients",),
        lacking=clients_lacking,
    ),
    Suite(
        name="java",
        what="the Java clients, driven through py4j",
        modules=("test_java_client", "test_java_admin", "test_java_consumer_groups", "test_java_transactions"),
    ),
    Suite(
        name="streams",
        what=f"Kafka Streams' system tests, Connect and MirrorMaker 2, {kafka_jars.KAFKA_VERSION}, processes killed",
        modules=("test_kafka_streams", "test_kafka_connect"),
        lacking=streams_lacking,
    ),
    Suite(name="spark", what="Spark's Kafka source and sink", modules=("test_spark_source",)),
    Suite(
        name="kafkajs",
        what=f"KafkaJS {kafkajs_scripts.VERSION} on Node",
        modules=("test_kafkajs",),
        lacking=kafkajs_scripts.lacking,
    ),
    Suite(
        name="librdkafka",
        what="librdkafka, by way of confluent-kafka and kcat",
        modules=("test_confluent", "test_kcat"),
        lacking=kcat_lacking,
    ),
    Suite(
        name="librdkafka-tests",
        what=f"librdkafka's own tests, {librdkafka_tests.VERSION.partition('+')[2]}, three brokers",
        modules=("test_librdkafka_suite",),
        lacking=librdkafka_tests.lacking,
        brings_brokers=True,
    ),
    Suite(
        name="sign-in",
        what="every client by PLAIN, SCRAM and a certificate, and how each is refused",
        modules=("test_secured_clients",),
        lacking=clients_lacking,
    ),
    Suite(
        name="kaskade",
        what=f"kaskade {kaskade_program.VERSION}: topics and records as its window shows them",
        modules=("test_kaskade",),
    ),
    Suite(name="aiokafka", what="aiokafka", modules=("test_aiokafka",)),
    Suite(name="kafka-python", what="kafka-python", modules=("test_kafka_python",)),
)


def all_suites() -> list[Suite]:
    """The suites above, and one more of every module that none of them names."""
    modules = {path.stem for path in HERE.glob("test_*.py")}
    suites = [replace(suite, modules=tuple(name for name in suite.modules if name in modules)) for suite in NAMED]
    further = modules - {name for suite in suites for name in suite.modules}
    what = "groups, transactions, semantics and administration, each with the clients that show it best"
    return [*suites, Suite(name="stories", what=what, modules=tuple(sorted(further)))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Brokers:
    """What the suites run against."""

    count: int
    are_secured: bool


def run(suite: Suite, scratch: Path, brokers: Brokers) -> Outcome:
    """Run a suite, long runs included; `scratch` receives its output and what its tests leave."""
    copies = str(min(brokers.count, 3))
    report, output = scratch / "report.xml", scratch / "output"
    command = [
        *(sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"),
        *(f"--junitxml={report}", f"--basetemp={scratch / 'tests'}"),
        *(str(HERE / f"{module}.py") for module in suite.modules),
    ]
    with output.open("w") as out:
        subprocess.run(
            command,
            cwd=ROOT,
            env={
                **os.environ,
                "FLUVIAL_COMPAT": "all",
                "FLUVIAL_COMPAT_BROKERS": str(brokers.count),
                "FLUVIAL_COMPAT_SECURE": str(int(brokers.are_secured)),
                "KGO_TEST_RF": copies,
            },
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if not report.exists():
        return Outcome(skipped={}, problem=output.read_text()[-400:].strip())
    passed, failed, skipped = set(), set(), {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = name_of(case)
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(name)
        elif (skip := case.find("skipped")) is not None:
            skipped[name] = skip.get("message", "")
        else:
            passed.add(name)
    return Outcome(passed=frozenset(passed - failed), failed=frozenset(failed), skipped=skipped)


def name_of(case: ElementTree.Element) -> str:
    """The name of a test in `FINDINGS.md`: franz-go's have the one they have in Go, the others `module::test`."""
    name = case.get("name", "")
    if (in_go := re.fullmatch(r"test_kgo\[(\w+)\]", name)) is not None:
        return in_go[1]
    return f"{case.get('classname', '').rpartition('.')[2]}::{name}"


def require_streams(say: Callable[[str], None]) -> None:
    """As for Kafka's tools."""
    kafka_jars.require_kafka_jars(say, kafka_jars.STREAMS_AND_CONNECT)


def prepare() -> int:
    """Fetch and build what the suites need; what this machine cannot have is named, and is no error here."""
    for lacking, require in (
        (kafka_jars.lacking, kafka_jars.require_kafka_jars),
        (streams_lacking, require_streams),
        (franz_go.lacking, franz_go.require_program),
        (kafkajs_scripts.lacking, kafkajs_scripts.require_packages),
    ):
        if (lack := lacking()) is not None:
            say(f"left out: {lack}")
        else:
            require(say)
    return 0


def compare(suites: Sequence[Suite], keep: Path, brokers: Brokers) -> int:
    """
    Run the suites one after the other; returns the exit code.

    That is 77 where all that ran is good and this machine lacks something for others.
    """
    allowed = findings.allowlist(findings.PAGE.read_text(encoding="utf-8"), secured=brokers.are_secured)
    rows = []
    good, complete = True, True
    for number, suite in enumerate(suites, 1):
        say(f"[{number}/{len(suites)}] {suite.name}: {suite.what}")
        if (lack := suite.lacking()) is not None:
            say(f"      left out: {lack}")
            complete = False
            rows.append((suite.name, "", "", "", "left out"))
            continue
        began = time.monotonic()
        scratch = keep / suite.name
        scratch.mkdir(parents=True)
        outcome = run(suite, scratch, brokers)
        verdict = findings.judge(outcome, allowed.get(suite.name, {}))
        seconds = time.monotonic() - began
        exceptions = len(outcome.skipped) + len(outcome.failed) - len(verdict.skipped) - len(verdict.failed)
        count = f"{len(outcome.passed)} of {outcome.total}"
        say(f"      {count} passed, {exceptions} excepted, {seconds:.0f} s: {'good' if verdict.good else 'NOT good'}")
        for kind, names in (("failed", verdict.failed), ("skipped", verdict.skipped)):
            for name in names:
                why = outcome.skipped.get(name)
                say(f"      {kind}: {name}{f' ({why})' if why else ''}")
        for name in verdict.stale:
            say(f"      passes, or is gone, and is still excepted in FINDINGS.md: {name}")
        if verdict.problem is not None:
            say(f"      {verdict.problem}")
        if not verdict.good:
            say(f"      its output lies in {scratch}")
        good = good and verdict.good
        rows.append((suite.name, count, str(exceptions), f"{seconds:.0f}", "good" if verdict.good else "NOT good"))
    say("")
    header = ("suite", "passed", "excepted", "seconds", "")
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, *rows):
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if not good:
        return 1
    return 0 if complete else LEFT_OUT


def main(arguments: list[str]) -> int:
    """See the module's own words."""
    parser = argparse.ArgumentParser(prog="python -m tests.compat.run", description="Run the client suites.")
    known = {suite.name: suite for suite in all_suites()}
    parser.add_argument("suite", nargs="*", choices=[*known, []], help="the suites to run (default: all)")
    parser.add_argument("--skip", action="append", default=[], choices=known, help="all but this suite; repeatable")
    parser.add_argument("--prepare", action="store_true", help="only fetch and build what the suites need")
    parser.add_argument("--brokers", type=int, default=1, help="how many brokers (default: 1)")
    parser.add_argument("--secure", action="store_true", help="over SASL_SSL, as a super user")
    given = parser.parse_args(arguments)
    if given.prepare:
        return prepare()
    suites = [known[name] for name in given.suite or known if name not in given.skip]
    if given.brokers > 1:
        suites = [suite for suite in suites if not suite.brings_brokers]
    keep = Path(tempfile.mkdtemp(prefix="fluvial-compat-"))
    brokers = Brokers(count=given.brokers, are_secured=given.secure)
    status = compare(suites, keep, brokers)
    if status != 1:
        shutil.rmtree(keep)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
