"""
Tables made through Spark Connect: a server in a process of its own, and clients that have no JVM, one of them killed.

`make rota` runs it, or FLUVIAL_ROTA=1, where the extra `connect` is installed: the processes take a minute to start.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from log_topic import Schemas, Sent, Topic
from plain_fold import SCHEMA, plain_compacted, plain_state, random_events

from fluvial.config import Settings
from fluvial.spark.jars import require_jars
from fluvial.spark.session import session_conf
from fluvial.testing import embedded_platform
from tests.free_ports import free_port

pytestmark = [
    pytest.mark.spark,
    pytest.mark.rota,
]

PATIENCE_SECONDS = 300
PARTITIONS = 2
# Each session of a server compiles its code again, which takes far longer than these rows do.
FEW_ROWS = {
    "spark.driver.memory": "1g",
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.default.parallelism": "1",
    "spark.sql.codegen.wholeStage": "false",
}
FOLDS = ("events", "total", "mean_amount", "latest_amount", "known_down", "amounts")
TABLES = f"""
from fluvial.tables import compacted, history, pipeline, state
from plain_fold import FIELDS

events = history("readings")
newest = compacted("readings", key="id")
folded = state("readings", topic="readings", key="id", fields={{name: FIELDS[name] for name in {FOLDS}}})


@pipeline(name="kinds", inputs=["history.readings"], key="kind", version="1")
def kinds(readings):
    return readings.groupBy("kind").count()
"""
CLIENT = """
import json
import sys
from concurrent.futures import ThreadPoolExecutor

from fluvial.config import load_settings
from fluvial.tables.declare.project import load_project
from fluvial.tables.inspect.explain import as_lines, explain
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.verify import verify
from fluvial.registry.client import RegistryClient
from fluvial.spark.session import build_session

settings = load_settings()
spark = build_session(settings)
declared = load_project(settings.project)
with RegistryClient(settings.registry_url) as schemas:
    def bring_up(table):
        done = materialize(declared[table], settings, spark, schemas=schemas)
        print(table, done.version_after, done.rows, flush=True)

    for table in ("history.readings", "compacted.readings"):
        bring_up(table)
    print("state next", flush=True)
    # Two at once: each range enters the table by one of them.
    with ThreadPoolExecutor() as both:
        list(both.map(bring_up, ["state.readings"] * 2))
    bring_up("marts.kinds")
    print("\\n".join(as_lines(explain(declared["marts.kinds"], settings, spark))))
    for table in declared:
        print("verified", table, verify(declared[table], settings, spark, schemas=schemas).is_exact)
for table in declared:
    rows = [row.asDict(recursive=True) for row in spark.table(table).collect()]
    print("rows", table, json.dumps(rows, default=str))
print("jvm", "py4j.java_gateway" in sys.modules and hasattr(spark, "_jvm"))
spark.stop()
"""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A project that is a client of the server, on a platform of its own."""

    folder: Path
    topic: Topic
    environment: dict[str, str]

    def start(self, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            words, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *words: str) -> str:
        with self.start(*words) as process:
            said, problems = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0, f"{said}\n{problems}"
        return said


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A Spark Connect server with the settings and the jars that the documentation gives it."""
    import pyspark

    port = free_port()
    settings = Settings(spark_master="local[2]", warehouse=str(tmp_path / "warehouse"))
    conf = session_conf(settings, [str(jar) for jar in require_jars()])
    conf |= {"spark.connect.grpc.binding.port": str(port), **FEW_ROWS}
    words = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    log = tmp_path / "server.log"
    with (
        log.open("wb") as out,
        subprocess.Popen(
            [str(submit), "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", *words],
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=tmp_path,
        ) as process,
    ):
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while True:
                assert process.poll() is None, log.read_text()
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    assert time.monotonic() < deadline, log.read_text()
                    time.sleep(0.1)
            yield f"sc://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)


@pytest.fixture
def place(server: str, tmp_path: Path) -> Iterator[Place]:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "tables_of_readings.py").write_text(TABLES)
    (folder / "client.py").write_text(CLIENT)
    with embedded_platform() as platform, Schemas(platform.registry_url) as schemas:
        schemas.register("readings-value", SCHEMA)
        platform.broker.create_topic("readings", partitions=PARTITIONS)
        (folder / "fluvial.toml").write_text(
            f'bootstrap_servers = "{platform.bootstrap_servers}"\n'
            f'registry_url = "{platform.registry_url}"\n'
            f'warehouse = "{tmp_path / "warehouse"}"\n'
            f'project = "tables_of_readings"\n'
            f'[spark]\nremote = "{server}"\nsql.shuffle.partitions = 1\n'
        )
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FLUVIAL_", "SPARK_"))}
        path = [str(folder), str(Path(__file__).parent), *filter(None, [inherited.get("PYTHONPATH")])]
        yield Place(
            folder=folder,
            topic=Topic(
                name="readings",
                bootstrap_servers=platform.bootstrap_servers,
                schemas=schemas,
                partitions=PARTITIONS,
            ),
            # A client needs no Java.
            environment={**inherited, "PYTHONPATH": os.pathsep.join(path), "JAVA_HOME": str(folder / "none")},
        )


def test_a_client_without_a_jvm_makes_the_same_tables_also_when_killed(place: Place) -> None:
    events = random_events(11, 180, partitions=PARTITIONS)
    place.topic.send([*events[:60], Sent(key="key 1", raw=b"no avro", partition=1)])
    place.run(str(Path(sys.executable).parent / "fluvial"), "run")
    place.topic.send(events[60:120])
    with place.start(sys.executable, "client.py") as killed:
        assert killed.stdout is not None
        for line in killed.stdout:
            if line.startswith("state next"):
                break
        else:
            pytest.fail(str(killed.stderr and killed.stderr.read()))
        killed.kill()
    place.topic.send([*events[120:], Sent(key="key 2", raw=b"\0\0\0\0\1x", partition=0)])
    said = place.run(sys.executable, "client.py")
    lines = said.splitlines()
    rows: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if line.startswith("rows "):
            _, table, text = line.split(" ", 2)
            rows[table] = json.loads(text)
    assert {line for line in lines if line.startswith("verified")} == {
        f"verified {table} True"
        for table in ("history.readings", "compacted.readings", "state.readings", "marts.kinds")
    }
    assert "the full query (a client of Spark Connect cannot read which rows changed)" in said
    assert "jvm False" in lines
    sent = [(partition, offset) for partition, offset, record in place.topic.in_order() if record.decodes]
    assert sorted((row["_partition"], row["_offset"]) for row in rows["history.readings"]) == sent
    newest = {row["id"]: (row["_partition"], row["_offset"], row["amount"]) for row in rows["compacted.readings"]}
    assert newest == {
        key: (row["_partition"], row["_offset"], row["amount"]) for key, row in plain_compacted(place.topic).items()
    }
    folded = {row["id"]: {name: row[name] for name in FOLDS} for row in rows["state.readings"]}
    expected = {key: {name: row[name] for name in FOLDS} for key, row in plain_state(place.topic).items()}
    assert folded == expected
