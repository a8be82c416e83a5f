"""
Apache Kafka's own programs, from its Maven artifacts: the broker, the command-line tools and the system-test clients.

Maven resolves them once into the user's cache; from then on they are used from disk. A program is named by its Java
class:

    python -m tests.peers.kafka_jars                                            fetch them ahead of time
    python -m tests.peers.kafka_jars org.apache.kafka.tools.TopicCommand --help run one
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

KAFKA_VERSION = "4.1.0"

# The core and the tools of one version, and a logger that writes to stderr: what the tools print stays on stdout.
ARTIFACTS = (
    f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
    f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",
    "org.slf4j:slf4j-simple:1.7.36",
)
# Kafka Streams with its own system tests, and Connect with the connectors for files and for mirroring.
STREAMS_AND_CONNECT = (
    f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}",
    f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}:test",
    # What those tests use of the client's.
    f"org.apache.kafka:kafka-clients:{KAFKA_VERSION}:test",
    f"org.apache.kafka:connect-runtime:{KAFKA_VERSION}",
    f"org.apache.kafka:connect-file:{KAFKA_VERSION}",
    f"org.apache.kafka:connect-mirror:{KAFKA_VERSION}",
    "org.slf4j:slf4j-simple:1.7.36",
)
JAVA_MAJOR_MIN = 17

# The tools live for seconds: the first compiler tier and the simplest collector start them in half the time. A server
# that is measured wants neither and passes its own options.
TOOL_JVM = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_COMPLETE = "COMPLETE"


class KafkaJarsError(RuntimeError):
    """Kafka's programs cannot be had or started here; the message says what to install or check."""


def jars_folder(artifacts: Sequence[str] = ARTIFACTS) -> Path:
    """The folder of the user's cache that holds the jars of this version once they are fetched."""
    return cache_folder(f"kafka-{KAFKA_VERSION}{'' if artifacts is ARTIFACTS else '-streams-connect'}")


def cache_folder(name: str) -> Path:
    """The folder of this name in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "fluvial" / name


def lacking(artifacts: Sequence[str] = ARTIFACTS) -> str | None:
    """What this machine lacks to run Kafka's programs, as a reason to skip; None when they can be run."""
    if shutil.which("java") is None:
        return f"Kafka's programs need Java {JAVA_MAJOR_MIN} or newer on PATH: apt-get install openjdk-17-jre-headless"
    if not (jars_folder(artifacts) / _COMPLETE).exists() and shutil.which("mvn") is None:
        return "Kafka's jars are fetched by Maven, and there is no `mvn` on PATH: apt-get install maven"
    return None


def require_kafka_jars(say: Callable[[str], None] = lambda _line: None, artifacts: Sequence[str] = ARTIFACTS) -> Path:
    """
    Return the folder with the jars, fetched first when this machine has not got them yet (55 MB, or 120 MB).

    `say` gets a line when the fetch begins. Raises KafkaJarsError. Of two fetches at once the first to end wins.
    """
    if (lack := lacking(artifacts)) is not None:
        raise KafkaJarsError(lack)
    return fetched(jars_folder(artifacts), artifacts, f"Apache Kafka {KAFKA_VERSION}", say)


def fetched(
    folder: Path, artifacts: Sequence[str], title: str, say: Callable[[str], None] = lambda _line: None
) -> Path:
    """Have Maven put artifacts, and what they need, into a folder of the cache, if they are not in it. Returns it."""
    if (folder / _COMPLETE).exists():
        return folder
    say(f"fetching {title} with Maven (once) …")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        ready = Path(scratch) / "ready"
        _copy_dependencies(Path(scratch), ready, artifacts, title)
        (ready / _COMPLETE).touch()
        try:
            ready.rename(folder)
        except OSError:
            if not (folder / _COMPLETE).exists():
                raise
    return folder


def _copy_dependencies(scratch: Path, into: Path, artifacts: Sequence[str], title: str) -> None:
    entries = []
    for artifact in artifacts:
        parts = zip(("groupId", "artifactId", "version", "classifier"), artifact.split(":"), strict=False)
        entries.append(f"<dependency>{''.join(f'<{part}>{word}</{part}>' for part, word in parts)}</dependency>")
    pom = scratch / "pom.xml"
    pom.write_text(
        "<project><modelVersion>4.0.0</modelVersion>"
        "<groupId>fluvial</groupId><artifactId>peers</artifactId><version>1</version>\n"
        f"<dependencies>{''.join(entries)}</dependencies>\n</project>\n"
    )
    # --strict-checksums: a jar that is not what the repository says it is fails the fetch.
    command = ["mvn", "--batch-mode", "--quiet", "--strict-checksums", "--file", str(pom)]
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={into}"]
    done = subprocess.run([*command, *goal], capture_output=True, text=True, check=False)
    if done.returncode != 0 or not any(into.glob("*.jar")):
        errors = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
        raise KafkaJarsError(
            f"Maven cannot fetch {title} ({(errors or ['it said nothing'])[0][:300]}); check the network, or behind a "
            "mirror Maven's settings.xml"
        )


def kafka_command(
    main_class: str, *words: object, jvm: Sequence[str] = TOOL_JVM, artifacts: Sequence[str] = ARTIFACTS
) -> list[str]:
    """
    Return the command line that runs `main_class` with `words`; `jvm` are all options of the virtual machine.

    Warnings and errors of the program go to stderr unless `jvm` sets another `org.slf4j.simpleLogger` level.
    """
    folder = require_kafka_jars(artifacts=artifacts)
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    return ["java", quiet, *jvm, "-cp", f"{folder}/*", main_class, *map(str, words)]


def run_kafka(
    main_class: str,
    *words: object,
    jvm: Sequence[str] = TOOL_JVM,
    given: str | None = None,
    timeout: float = 300.0,
) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end, `given` on its stdin, and return what it printed; the caller judges the exit code."""
    return subprocess.run(
        kafka_command(main_class, *words, jvm=jvm),
        input=given,
        stdin=None if given is not None else subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def start_kafka(
    main_class: str,
    *words: object,
    jvm: Sequence[str] = TOOL_JVM,
    stdout: "int | IO[Any] | None" = subprocess.PIPE,
    stderr: "int | IO[Any] | None" = subprocess.PIPE,
    env: Mapping[str, str] | None = None,
) -> "subprocess.Popen[str]":
    """Start a program and return it running; the caller ends it. `env` is added to the environment."""
    return subprocess.Popen(
        kafka_command(main_class, *words, jvm=jvm),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        text=True,
        env={**os.environ, **(env or {})},
    )


def main(arguments: list[str]) -> int:
    """Fetch the jars, or run the class that is named first."""
    try:
        folder = require_kafka_jars(lambda line: print(line, file=sys.stderr))
    except KafkaJarsError as error:
        print(error, file=sys.stderr)
        return 1
    if not arguments:
        print(folder)
        return 0
    return subprocess.run(kafka_command(arguments[0], *arguments[1:]), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
