"""`fluvial serve --keep-spark`: whose JVM commands use, what of one command the next one meets, and what ends it."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from init_project import InitProject
from local_platform import wait_until

pytestmark = pytest.mark.rota

TABLES = """

import os, time
import psutil
from pyspark.sql.functions import udf
from pyspark.sql.types import LongType, StringType
from fluvial.tables import pipeline
from shop.words import GREETING


@udf(StringType())
def greeted(customer):
    while os.path.exists("hold"):
        open("held", "w").close()
        time.sleep(0.05)
    return GREETING + customer


@udf(LongType())
def jvm_of(customer):
    return next(each.pid for each in psutil.Process().parents() if each.name() == "java")


@pipeline(name="greetings", inputs=["state.customers"])
def greetings(customers):
    return customers.select("customer", greeted("customer").alias("greeting"), jvm_of("customer").alias("jvm"))
"""
ITS_JVM = "select java_method('java.lang.ProcessHandle', 'current') as jvm"


class Kept(InitProject):
    """A project on a platform, and the server that keeps a session for it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.declare(TABLES)
        self.set('[spark]\n"spark.driver.memory" = "1g"\n')
        self.greet("welcome ")
        self.platform.up()
        self.produce()
        self.platform.run("run")
        self.serve()

    @property
    def note(self) -> Path:
        return self.platform.data_dir / "spark.json"

    def serve(self) -> None:
        # One that was killed has left its note.
        self.note.unlink(missing_ok=True)
        self.server = self.platform.start("serve", "--keep-spark", "--port", "0")
        self.wait_until_kept()

    def wait_until_kept(self) -> None:
        wait_until(lambda: self.note.exists() or self.server.poll() is not None)
        assert self.server.poll() is None, (self.platform.data_dir / "started.log").read_text()

    def jvm(self) -> int:
        """The JVM of the session: a child of the process that keeps it. One that a command starts lies deeper."""
        of_server = psutil.Process(self.server.pid).children()
        (jvm,) = [each for process in of_server for each in process.children() if each.name() == "java"]
        return jvm.pid

    def greet(self, greeting: str) -> None:
        (self.folder / "shop" / "words.py").write_text(f"GREETING = {greeting!r}\n")

    def start_held(self) -> "subprocess.Popen[str]":
        """Start a run, and return when its Python workers wait for `hold` to go."""
        (self.folder / "hold").touch()
        (self.folder / "held").unlink(missing_ok=True)
        run = self.platform.start("run")
        wait_until(lambda: (self.folder / "held").exists() or run.poll() is not None)
        assert run.poll() is None, (self.platform.data_dir / "started.log").read_text()
        return run

    def greetings(self) -> tuple[set[str], set[int]]:
        """How customers are greeted, and by Python workers of which JVM."""
        rows = self.platform.sql("select * from marts.greetings")
        return {row["greeting"].removesuffix(row["customer"]) for row in rows}, {row["jvm"] for row in rows}

    def jvm_of_sql(self, *options: str) -> int:
        done = self.platform.run("sql", "--engine", "spark", "--format", "json", *options, ITS_JVM)
        return int(json.loads(done.stdout)[0]["jvm"])


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    made = Kept(tmp_path_factory.mktemp("kept"))
    yield made
    (made.folder / "hold").unlink(missing_ok=True)
    made.platform.down()


def test_a_run_uses_the_kept_session_and_the_project_as_it_is_now(kept: Kept) -> None:
    kept.greet("hello ")
    kept.platform.run("run")
    assert kept.greetings() == ({"hello "}, {kept.jvm()})

    # The same Python workers would still have the module as it was.
    kept.greet("good day ")
    done = kept.platform.run("run")
    assert "marts.greetings" in done.stdout + done.stderr
    assert kept.greetings() == ({"good day "}, {kept.jvm()})
    assert kept.jvm_of_sql() == kept.jvm()


def test_who_comes_while_another_has_it_or_has_other_settings_starts_spark(kept: Kept) -> None:
    kept.greet("good evening ")
    run = kept.start_held()
    assert kept.jvm_of_sql() != kept.jvm()
    (kept.folder / "hold").unlink()
    assert run.wait(timeout=300) == 0
    wait_until(lambda: kept.jvm_of_sql() == kept.jvm(), 60)
    assert kept.jvm_of_sql("--conf", "spark.sql.shuffle.partitions=3") != kept.jvm()


def test_a_command_that_is_killed_in_the_middle_leaves_nothing_to_the_next(kept: Kept) -> None:
    kept.greet("hi ")
    run = kept.start_held()
    run.kill()
    run.wait()
    # Its job is cancelled, and with it who waits for the file.
    wait_until(lambda: not _workers(kept.jvm()), 60)
    (kept.folder / "hold").unlink()

    kept.platform.run("run")
    assert kept.greetings() == ({"hi "}, {kept.jvm()})


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_run_that_is_interrupted_ends(kept: Kept, *, is_kept: bool) -> None:
    note = kept.note.read_bytes()
    if not is_kept:
        kept.note.unlink()
    greeting = f"{'hello' if is_kept else 'goodbye'} again "
    kept.greet(greeting)
    run = kept.start_held()
    run.send_signal(signal.SIGINT)
    assert run.wait(timeout=60) == 130
    assert "interrupted" in (kept.platform.data_dir / "started.log").read_text()
    (kept.folder / "hold").unlink()
    kept.note.write_bytes(note)
    kept.platform.run("run")
    assert kept.greetings()[0] == {greeting}


def test_a_jvm_that_dies_is_started_again_and_one_whose_server_dies_ends(kept: Kept) -> None:
    former = kept.jvm()
    os.kill(former, signal.SIGKILL)
    wait_until(lambda: not kept.note.exists())
    assert kept.jvm_of_sql() != former
    kept.wait_until_kept()
    assert kept.jvm_of_sql() == kept.jvm()

    jvm = kept.jvm()
    os.kill(kept.server.pid, signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(jvm))
    assert kept.jvm_of_sql() != jvm
    kept.serve()
    assert kept.jvm_of_sql() == kept.jvm()


def test_a_server_that_is_told_to_stop_leaves_no_note_and_commands_start_spark(kept: Kept) -> None:
    kept.server.send_signal(signal.SIGTERM)
    assert kept.server.wait(timeout=60) == 0
    assert not kept.note.exists()
    kept.platform.run("run")
    kept.serve()


def _workers(jvm: int) -> list[psutil.Process]:
    """The Python processes of a JVM that run something: children of its daemon."""
    daemons = psutil.Process(jvm).children()
    return [worker for daemon in daemons for worker in daemon.children()]
