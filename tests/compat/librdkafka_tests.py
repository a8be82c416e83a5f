"""
librdkafka's own integration tests, compiled from the crate `rdkafka-sys`, which ships its source with them.

Cargo fetches the crate at one pinned version and checks it against the registry's index; the compiled runner lies in
the user's cache from then on. Those of its tests that need no broker are left out.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slow_relay import late_answers_of

from tests.peers import kafka_jars
from tests.peers.kafka_jars import TOOL_JVM, kafka_command, require_kafka_jars

CRATE, VERSION = "rdkafka-sys", "4.10.0+2.12.1"
CRATE_SUM = "e234cf318915c1059d4921ef7f75616b5219b10b46e9f3a511a15eb4b56a3f77"
SECONDS_MAX = 1800
PARALLEL = 3

# Of the tests that compare with the broker's version: what our broker does is what this one does.
_BROKER_VERSION = "4.1.0.0"
_TEST = re.compile(r"^    _TEST\((?P<name>\w+),(?P<rest>.*?)(?=^    _TEST\(|^};)", re.MULTILINE | re.DOTALL)
_NEEDS_NO_BROKER = re.compile(r"TEST_F_LOCAL|TEST_F_MANUAL|TEST_F_KNOWN_ISSUE\b")
_OTHER_SCENARIO = re.compile(r'\.scenario = "(?!default)')
_SUMMARY = re.compile(r"^\| (?P<name>\d{4}_\w+) +\| +\w+ \| +[\d.]+s \|? ?(?P<why>.*)$", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

# These have their sockets fail by closing a descriptor twice, and then it may be another test's. One at a time.
_ALONE = ("0049", "0068", "0075", "0076", "0088", "0094")
# One test of many parts, the first of which to fail ends it: each for itself.
_ADMIN = "0081_admin"
_ADMIN_PARTS = (
    *(
        "unclean_destroy",
        "CreateTopics",
        "DeleteTopics",
        "CreatePartitions",
        "CreateAcls",
        "DescribeAcls",
        "DeleteAcls",
    ),
    *("AlterConfigs", "IncrementalAlterConfigs", "DescribeConfigs", "DeleteRecords"),
    *("ListConsumerGroups", "DescribeConsumerGroups"),
    *("DescribeTopics", "DescribeCluster", "DeleteGroups", "DeleteConsumerGroupOffsets", "ListOffsets"),
    *("AlterConsumerGroupOffsets", "ListConsumerGroupOffsets", "UserScramCredentials"),
)
_PARTS = (
    *("tests/test-runner", "tests/test.c"),
    *("src/librdkafka.so.1", "src/statistics_schema.json", "src-cpp/librdkafka++.so.1"),
)
_SIGNS_IN_AGAIN, _CERTIFICATES = "0142", "0097"
# The same test where nothing but a certificate lets a client in.
_MUTUAL = "0097_ssl_verify/mutual"
# Two tests have a Java client beside them, and build it before each use; here it is built already.
_BUILD_OF_JAVA = ".PHONY: java\njava:\n"
# Two parts of a test alter a setting of Kerberos, which there is not: another one is put in its place.
_KERBEROS, _IN_ITS_PLACE = '"sasl.kerberos.min.time.before.relogin"', '"fluvial.event.loop.lag.warn.ms"'


class LibrdkafkaError(RuntimeError):
    """The suite cannot be built here; the message says what to install or check."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a test ended, PASSED, FAILED or SKIPPED, and what it says of that."""

    state: str
    why: str

    @property
    def is_skipped(self) -> bool:
        return self.state == "SKIPPED"


def folder() -> Path:
    """Where the runner and what it needs lie once they are built."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "fluvial" / f"librdkafka-tests-{VERSION.partition('+')[2]}-with-java"


def lacking() -> str | None:
    """What this machine lacks to build the suite, as a reason to skip; None when it can be built or is there."""
    if (lack := kafka_jars.lacking()) is not None or folder().exists():
        return lack
    programs = (("cargo", "cargo"), ("g++", "build-essential"), ("make", "build-essential"))
    for program, package in (*programs, ("javac", "openjdk-17-jdk-headless")):
        if shutil.which(program) is None:
            return f"librdkafka's tests need `{program}`, and there is none on PATH: apt-get install {package}"
    headers = (("openssl/ssl.h", "libssl-dev"), ("zlib.h", "zlib1g-dev"), ("rapidjson/document.h", "rapidjson-dev"))
    for header, package in headers:
        source = f"#include <{header}>\n"
        command = ["g++", "-E", "-x", "c++", "-", "-o", os.devnull]
        if subprocess.run(command, input=source, text=True, capture_output=True, check=False).returncode != 0:
            return f"librdkafka's tests need the header {header}: apt-get install {package}"
    return None


def require_tests(say: Callable[[str], None] = lambda _line: None) -> Path:
    """
    Return the folder with the runner, built first when this machine has not got it yet (about two minutes).

    Raises LibrdkafkaError.
    """
    built = folder()
    if built.exists():
        return built
    if (lack := lacking()) is not None:
        raise LibrdkafkaError(lack)
    say(f"building librdkafka {VERSION.partition('+')[2]} and its tests (once, about two minutes) …")
    require_kafka_jars(say)
    built.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{built.name}-", dir=built.parent) as scratch:
        source = _source(Path(scratch))
        _put_in_place(source / "tests/0081-admin.c", _KERBEROS, _IN_ITS_PLACE)
        features = ("--disable-gssapi", "--disable-zstd", "--disable-lz4-ext")
        _do("./configure", *features, cwd=source)
        jobs = f"-j{os.cpu_count() or 1}"
        _do("make", jobs, "libs", cwd=source)
        _do("make", jobs, "-C", "tests", "test-runner", cwd=source)
        ready = Path(scratch) / "ready"
        ready.mkdir()
        for part in _PARTS:
            (ready / part).parent.mkdir(exist_ok=True)
            shutil.copy(source / part, ready / part)
        shutil.copytree(source / "tests/fixtures", ready / "tests/fixtures")
        _build_java(source / "tests/java", ready / "tests")
        try:
            ready.rename(built)
        except OSError:
            if not built.exists():
                raise
    return built


def _put_in_place(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    if old not in text:
        raise LibrdkafkaError(f"{path.name} of librdkafka's tests has no {old} any more")
    path.write_text(text.replace(old, new))


def _build_java(source: Path, into: Path) -> None:
    made = into / "java"
    made.mkdir()
    shutil.copy(source / "run-class.sh", made)
    classes = sorted(str(path) for path in source.glob("*.java"))
    _do("javac", "-nowarn", "-cp", f"{require_kafka_jars()}/*", "-d", str(made), *classes, cwd=source)
    (into / "Makefile").write_text(_BUILD_OF_JAVA)


def _source(scratch: Path) -> Path:
    crate = scratch / "crate"
    (crate / "src").mkdir(parents=True)
    (crate / "src/lib.rs").touch()
    (crate / "Cargo.toml").write_text(
        f'[package]\nname = "suite"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\n{CRATE} = "={VERSION}"\n'
    )
    _do("cargo", "vendor", "--quiet", "vendored", cwd=crate)
    vendored = crate / "vendored" / CRATE
    found = json.loads((vendored / ".cargo-checksum.json").read_text())["package"]
    if found != CRATE_SUM:
        raise LibrdkafkaError(f"{CRATE} {VERSION} has the checksum {found}, not {CRATE_SUM}")
    return vendored / "librdkafka"


def names(*, secured: bool) -> list[str]:
    """The tests that a broker is needed for, those of many parts by part; `secured` as the cluster is."""
    source = (require_tests() / "tests/test.c").read_text()
    table = source[source.index("struct test tests[] = {") :]
    found = [
        test["name"]
        for test in _TEST.finditer(table)
        if not _NEEDS_NO_BROKER.search(test["rest"]) and not _OTHER_SCENARIO.search(test["rest"])
    ]
    parts = [f"{_ADMIN}/{part}" for part in _ADMIN_PARTS]
    return [*(name for name in found if name != _ADMIN), *parts, *([_MUTUAL] if secured else [])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """How clients reach the cluster, each as librdkafka's settings."""

    settings: Mapping[str, str]
    java: Mapping[str, str]
    """For Kafka's tools, which some tests call."""
    again: Mapping[str, str] | None = None
    """Where a client must sign in again every few seconds, for the one test that is about that."""
    mutual: Mapping[str, str] | None = None
    """Where a client shows a certificate, for the one test that is about those."""
    certificate: Mapping[str, str] = field(default_factory=dict)
    """That certificate and its key: that test has them wherever it connects."""
    forms: Mapping[str, str] = field(default_factory=dict)
    """Files of the certificate, its key and its authority in each form, by that test's variables."""


def run(cluster: Cluster, scratch: Path) -> dict[str, Outcome]:
    """
    Run the tests; return each test's outcome by its name. `scratch` receives output and settings.

    Some measure time: what fails beside others is run again alone, and that counts.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    runner, settings = _Runner(scratch, cluster.java), cluster.settings
    apart = (*_ALONE, _ADMIN[:4], _SIGNS_IN_AGAIN, _CERTIFICATES)
    outcomes = runner.run("most", settings, f"-p{PARALLEL}", "-E", TESTS_SKIP=",".join(apart))
    failed = {name[:4] for name, outcome in outcomes.items() if outcome.state == "FAILED"}
    for number in (*_ALONE, *sorted(failed)):
        outcomes |= runner.run(number, settings, TESTS=number)
    outcomes |= runner.run("again", cluster.again or settings, TESTS=_SIGNS_IN_AGAIN)
    outcomes |= _run_about_certificates(runner, "certificates", {**settings, **cluster.certificate}, cluster.forms)
    if cluster.mutual is not None:
        found = _run_about_certificates(runner, "mutual", cluster.mutual, cluster.forms)
        outcomes |= {f"{name}/mutual": outcome for name, outcome in found.items()}
    for part in _ADMIN_PARTS:
        found = runner.run(part, settings, TESTS=_ADMIN[:4], SUBTESTS=f"do_test_{part}")
        outcomes |= {f"{_ADMIN}/{part}": outcome for name, outcome in found.items() if name == _ADMIN}
    return outcomes


def _run_about_certificates(
    runner: "_Runner", name: str, settings: Mapping[str, str], forms: Mapping[str, str]
) -> dict[str, Outcome]:
    server, _, _ = settings["bootstrap.servers"].partition(",")
    with late_answers_of(server) as address:
        return runner.run(name, {**settings, "bootstrap.servers": address}, TESTS=_CERTIFICATES, **forms)


class _Runner:
    def __init__(self, scratch: Path, java: Mapping[str, str]) -> None:
        self._scratch = scratch
        self._tools = scratch / "kafka"
        self._write_tools(java)
        # Tests leave files where they are run.
        built = require_tests()
        (scratch / "tests").mkdir()
        for path in (built / "src", built / "src-cpp", *(built / "tests").iterdir()):
            (scratch / path.relative_to(built)).symlink_to(path)

    def run(self, name: str, settings: Mapping[str, str], *flags: str, **environ: str) -> dict[str, Outcome]:
        config = self._scratch / f"{name}.conf"
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        report, output = self._scratch / f"{name}.json", self._scratch / f"{name}.out"
        with (
            output.open("w") as out,
            (self._scratch / f"{name}.err").open("w") as err,
            contextlib.suppress(subprocess.TimeoutExpired),  # Then there is no report.
        ):
            subprocess.run(
                [
                    *("stdbuf", "-oL", "./test-runner"),  # By lines: it may end by a signal.
                    *(flags or ("-p1",)),
                    *("-L", "-K", "-V", _BROKER_VERSION),
                ],
                cwd=self._scratch / "tests",
                env={
                    **os.environ,
                    "LD_LIBRARY_PATH": f"{self._scratch}/src:{self._scratch}/src-cpp",
                    "RDKAFKA_TEST_CONF": str(config),
                    "KAFKA_PATH": str(self._tools),
                    "BROKERS": settings["bootstrap.servers"],
                    "TEST_REPORT": str(report),
                    **environ,
                },
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                check=False,
                timeout=SECONDS_MAX,
            )
        reasons = {found["name"]: found["why"].strip() for found in _SUMMARY.finditer(_plain(output))}
        tests = json.loads(report.read_text())["tests"] if report.exists() else {}
        return {
            test: Outcome(ended["state"], reasons.get(test, "see its output"))
            for test, ended in tests.items()
            if test.startswith(environ.get("TESTS", "")) and not test.startswith(_left_out(environ))
        }

    def _write_tools(self, java: Mapping[str, str]) -> None:
        """Make the few scripts of a Kafka installation that the tests call."""
        (self._tools / "bin").mkdir(parents=True)
        config = self._tools / "client.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in java.items()))
        for name, main_class in (("kafka-topics", "TopicCommand"), ("kafka-acls", "AclCommand")):
            script = self._tools / f"bin/{name}.sh"
            command = kafka_command(f"org.apache.kafka.tools.{main_class}")
            words = " ".join(f"'{word}'" for word in command)
            script.write_text(f"#!/bin/sh\nexec {words} \"$@\" --command-config '{config}'\n")
            script.chmod(0o755)
        runs = self._tools / "bin/kafka-run-class.sh"
        runs.write_text(f'#!/bin/sh\nexec java {" ".join(TOOL_JVM)} -cp "$CLASSPATH:{require_kafka_jars()}/*" "$@"\n')
        runs.chmod(0o755)


def _left_out(environ: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(environ["TESTS_SKIP"].split(",")) if "TESTS_SKIP" in environ else ()


def _plain(output: Path) -> str:
    return _COLOUR.sub("", output.read_text(errors="replace"))


def _do(*command: str, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said: Sequence[str] = (done.stderr or done.stdout).strip().splitlines()[-6:]
        raise LibrdkafkaError(f"`{' '.join(command)}` failed: {' / '.join(said)[-400:]}")
