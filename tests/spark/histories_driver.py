"""
A driver in a process of its own that brings one table after the other up to date as it is asked, until it is killed.

Its tables have a few rows, so Spark compiles nothing: that would take longer than all that is to be run.
"""

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from killed_driver import ending_at, kill
from schema_histories import declared, plain

from fluvial.config import Settings
from fluvial.registry.client import RegistryClient
from fluvial.tables.drive.rebuild import rebuild
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.verify import verify
from fluvial.tables.plan import table_index
from fluvial.tables.plan.table_index import TableIndexes

SPARK = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.memory": "1g",
}
ANSWER_SECONDS_MAX = 900


class InterruptedRunError(Exception):
    """What a run was asked to end by, with its process left as it is."""


class KilledError(Exception):
    """The driver is gone."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a run ends, if it comes there: at a step or after some milliseconds, by SIGKILL or else by an exception."""

    step: str | None = None
    after_ms: float = 0
    is_kill: bool = True

    def around(self, folder: Path) -> AbstractContextManager[object]:
        if self.step is not None:
            return ending_at(self.step, folder, kill if self.is_kill else _interrupt)
        timer = threading.Timer(self.after_ms / 1000, kill)
        timer.daemon = True
        timer.start()
        return _Cancelled(timer)


@dataclass(frozen=True)
class _Cancelled(AbstractContextManager[object]):
    timer: threading.Timer

    def __exit__(self, *_why: object) -> None:
        self.timer.cancel()


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is asked for, of a table of that kind: a run, `verify`, `rebuild`, or its `rows`."""

    what: str
    kind: str
    topic: str
    name: str
    warehouse: str
    records_max: int | None = None
    has_indexes: bool = False
    ending: Ending | None = None


@dataclass
class Driver:
    """The driver as the tests have it: started when it is asked for something, and again after it was killed."""

    settings: Settings
    kills: int = 0
    _process: Any = None
    _connection: Any = None

    def ask(self, order: Order) -> Any:
        """Return what was asked for. Raises KilledError and InterruptedRunError for an order's ending."""
        if self._process is None:
            self._start()
        self._connection.send(order)
        assert self._connection.poll(ANSWER_SECONDS_MAX), f"no answer to {order}"
        try:
            error, answer = self._connection.recv()
        except EOFError:
            self._process.join()
            assert self._process.exitcode == -signal.SIGKILL, self._process.exitcode
            assert order.ending is not None
            self._forget()
            self.kills += 1
            raise KilledError from None
        if error == InterruptedRunError.__name__:
            raise InterruptedRunError
        assert error is None, f"{order}\n{error}"
        return answer

    def stop(self) -> None:
        """End the process, and the JVM that it started."""
        if self._process is not None and self._process.is_alive():
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.join()
        self._forget()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self.settings), daemon=True)
        self._process.start()
        theirs.close()
        assert self._connection.poll(ANSWER_SECONDS_MAX), "the driver did not start"
        assert self._connection.recv() == "started"

    def _forget(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None


def _interrupt(*_arguments: object, **_keywords: object) -> None:
    raise InterruptedRunError


def _serve(connection: Connection, settings: Settings) -> None:
    from fluvial.spark.session import build_session

    os.setpgid(0, 0)  # which a kill takes with it, JVM and all
    settings = replace(settings, spark_master="local[1]", spark_conf=SPARK)
    schemas = RegistryClient(settings.registry_url)
    # Each driver goes on from what the one that was killed saved of its indexes.
    table_index.SAVED_MIN = 1
    served = _Served(spark=build_session(settings, "fluvial histories"), settings=settings, schemas=schemas)
    connection.send("started")
    while True:
        try:
            order = connection.recv()
        except EOFError:
            return
        try:
            connection.send((None, served.carry_out(order)))
        except InterruptedRunError:
            connection.send((InterruptedRunError.__name__, None))
        except Exception:
            connection.send((traceback.format_exc(), None))


@dataclass
class _Served:
    """What a driver keeps between orders: its session, and what it knows of the keys of one warehouse's tables."""

    spark: Any
    settings: Settings
    schemas: RegistryClient
    indexes: TableIndexes = field(default_factory=TableIndexes)

    def carry_out(self, order: Order) -> Any:
        if order.warehouse != self.settings.warehouse:
            self.settings, self.indexes = replace(self.settings, warehouse=order.warehouse), TableIndexes()
        table = declared(order.kind, order.topic, order.name)
        folder = Path(order.warehouse, table.table.replace(".", "/"))
        match order.what:
            case "run":
                with nullcontext() if order.ending is None else order.ending.around(folder):
                    return materialize(
                        table,
                        self.settings,
                        self.spark,
                        schemas=self.schemas,
                        indexes=self.indexes if order.has_indexes else None,
                        records_max=order.records_max,
                    ).skipped
            case "verify":
                return verify(table, self.settings, self.spark, schemas=self.schemas).is_exact
            case "rebuild":
                return rebuild(table, self.settings, self.spark, schemas=self.schemas) and None
            case "rows":
                return self._rows(folder)
        raise ValueError(order)

    def _rows(self, folder: Path) -> list[Mapping[str, Any]]:
        found = self.spark.read.format("delta").load(str(folder)).collect()
        return sorted((plain(row) for row in found), key=repr)
