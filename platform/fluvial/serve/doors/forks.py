"""
Commands as forks of a process that has imported already what they need: Dagster, PySpark, the checks.

Each is a process of its own, with the descriptors, the environment and the folder of the process that asks for it, and
imports the project afresh. It ends when that process does.
"""

import atexit
import gc
import io
import json
import os
import select
import signal
import socket
import sys
import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from fluvial.errors import FluvialError
from fluvial.query import jail
from fluvial.spark.jars import require_jars
from fluvial.spark.java import require_java
from fluvial.spark.kept import REQUEST_BYTES_MAX

# What a run of a project imports, where it is installed. Of Dagster, Spark and the checks also what they import late.
_IMPORTED = (
    "confluent_kafka.admin",
    "great_expectations",
    "httpcore",
    "httpx",
    "pandas",
    "pyarrow.dataset",
    "pyroaring",
    "rich.live",
    "rich.status",
    "dagster._core.definitions.external_asset",
    "dagster._core.execution.execute_in_process",
    "dagster._core.execution.plan.active",
    "dagster._core.executor.in_process",
    "dagster._core.instance.factory",
    "dagster._core.instance.runs.run_domain",
    "dagster._core.secrets.env_file",
    "dagster._core.storage.event_log",
    "dagster._core.storage.local_compute_log_manager",
    "dagster._core.storage.noop_compute_log_manager",
    "dagster._core.storage.root",
    "dagster._core.storage.runs",
    "dagster._core.storage.schedules",
    "dagster._core.storage.sqlite_storage",
    "dagster.components.core.snapshot",
    "pyspark.sql.avro.functions",
    "pyspark.sql.classic.dataframe",
    "pyspark.sql.classic.window",
    "upath.implementations.local",
    "fluvial.cli.run.run",
    "fluvial.cli.tree",
    "fluvial.kafka.recording_admin",
    "fluvial.orchestration.assets.up_to_date",
    "fluvial.orchestration.components",
    "fluvial.orchestration.run.run",
    "fluvial.quality.engine",
    "fluvial.spark.lent",
    "fluvial.spark.session",
    "fluvial.tables.drive.preflight",
    "fluvial.tables.drive.runner",
    "fluvial.tables.drive.short_run",
    "fluvial.tables.replay.replay",
)


def start_forks(address: Path, program: str) -> None:
    """
    Start the process that is forked, which listens at `address` when this returns. This process has one thread still.

    `program` is a module whose `execute` runs a command by its words.
    """
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        _serve(address, program, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as ready:
        ready.read()


def _serve(address: Path, program: str, ready: int) -> NoReturn:
    """Fork for whoever connects."""
    jail.end_with_parent()
    # A library's pool of threads would be gone in a fork.
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
    for name in (program, *_IMPORTED):
        with suppress(ImportError):
            import_module(name)
    # What a command does before Spark's: each checks them, and reads them once.
    with suppress(FluvialError):
        require_java()
        require_jars()
    # Collecting garbage would go through all that was imported, and copy it for each fork.
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(address))
        listener.listen()
        os.close(ready)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            link, _ = listener.accept()
            with link:
                if os.fork() == 0:
                    listener.close()
                    os._exit(_attend(link, program))


def _attend(link: socket.socket, program: str) -> int:
    """Run the command that is asked for, in a fork of this one, and say how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, descriptors, _, _ = socket.recv_fds(link, REQUEST_BYTES_MAX, 3)
    if len(descriptors) != 3:
        return 1
    command = os.fork()
    if command == 0:
        link.close()
        _end(_run(program, json.loads(message), descriptors))
    for descriptor in descriptors:
        os.close(descriptor)
    with suppress(OSError):
        link.send(b"%d" % command)
        watched = os.pidfd_open(command)
        if link.fileno() in select.select([link.fileno(), watched], [], [])[0]:
            # Who asked is gone.
            os.kill(command, signal.SIGKILL)
    _, status = os.waitpid(command, 0)
    with suppress(OSError):
        link.send(b"%d" % os.waitstatus_to_exitcode(status))
    return 0


def _end(status: int) -> NoReturn:
    """End a command as the interpreter would, but for taking apart all that was imported."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(status)


def _run(program: str, asked: dict[str, Any], descriptors: list[int]) -> int:
    os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=os.isatty(1))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.umask(asked["umask"])
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = ["fluvial", *asked["words"]]
    return int(import_module(program).execute(asked["words"]))
