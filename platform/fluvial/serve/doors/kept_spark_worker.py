"""
The process of `--keep-spark`: a session whose JVM is lent to one command at a time.

It is started by :mod:`fluvial.serve.doors.kept_spark`, and asked by :mod:`fluvial.spark.kept`.
"""

import json
import os
import select
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from threading import Condition, Thread
from typing import Any

from py4j.protocol import Py4JError

from fluvial.config import Settings
from fluvial.errors import FluvialError
from fluvial.query import jail
from fluvial.serve.doors.forks import start_forks
from fluvial.serve.doors.process import given, say_ready
from fluvial.spark import kept
from fluvial.spark.session import build_session, driver_conf

_ASKED_WITHIN_S = 5.0


def main() -> None:
    """
    Keep a session until stdin ends.
    """
    asked = given()
    jail.end_with_parent()
    folder = Path(asked["scratch"])
    settings = Settings(
        data_dir=Path(asked["data_dir"]),
        warehouse=asked["warehouse"],
        spark_master=asked["spark_master"],
        spark_conf=asked["spark_conf"],
    )
    # Before there is a second thread.
    start_forks(folder / kept.COMMANDS, asked["program"])
    try:
        fingerprint = kept.fingerprint(driver_conf(settings))
        session = build_session(settings, "fluvial serve")
    except FluvialError as error:
        sys.exit(str(error))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / kept.LEASES))
        listener.listen()
        Thread(target=Lender(session, fingerprint).serve, args=(listener,), name="lender", daemon=True).start()
        with kept.noted(settings, folder):
            say_ready()
            # With the JVM it ends, too, and is started again.
            select.select([0, os.pidfd_open(session.sparkContext._gateway.proc.pid)], [], [])
    with suppress(Py4JError):
        session.stop()


class _State(Enum):
    FREE = auto()
    LENT = auto()
    CLEARING = auto()


@dataclass(slots=True)
class Lender:
    """
    Gives the session's JVM to one process at a time, and clears away what that one left there.
    """

    session: Any
    fingerprint: str
    _state: _State = _State.FREE
    _changed: Condition = field(default_factory=Condition)

    def serve(self, listener: socket.socket) -> None:
        """
        Answer whoever connects, until the listener is closed.
        """
        with suppress(OSError):
            while True:
                link, _ = listener.accept()
                Thread(target=self._answer, args=(link,), daemon=True).start()

    def _answer(self, link: socket.socket) -> None:
        with link, suppress(OSError):
            link.settimeout(_ASKED_WITHIN_S)
            if link.recv(kept.REQUEST_BYTES_MAX).decode() != self.fingerprint:
                link.send(json.dumps({"refused": "it has other settings"}).encode())
            elif not self._taken():
                link.send(json.dumps({"refused": "another command has it"}).encode())
            else:
                self._lend(link)

    def _taken(self) -> bool:
        """Take the session if it is free, or will be as soon as it is cleared."""
        with self._changed:
            self._changed.wait_for(lambda: self._state is not _State.CLEARING, kept.CLEARED_WITHIN_S)
            is_free = self._state is _State.FREE
            if is_free:
                self._state = _State.LENT
            return is_free

    def _turn(self, state: _State) -> None:
        with self._changed:
            self._state = state
            self._changed.notify_all()

    def _lend(self, link: socket.socket) -> None:
        """Lend the session until the other side closes the connection or ends."""
        try:
            first = self._next_object()
            try:
                gateway = self.session.sparkContext._gateway.gateway_parameters
                link.send(json.dumps({"port": gateway.port, "secret": gateway.auth_token}).encode())
                link.settimeout(None)
                link.recv(1)
            finally:
                self._turn(_State.CLEARING)
                self._clear(first)
        finally:
            self._turn(_State.FREE)

    def _next_object(self) -> int:
        """The number of the next object that the JVM holds for a Python process."""
        return int(self.session._jvm.java.lang.Object()._target_id.removeprefix("o")) + 1

    def _clear(self, first: int) -> None:
        """
        Clear away what the last process left: its jobs, cached data, Python workers, and the objects held for it.

        Workers have imported the project's modules as they were, and the next process brings changed ones.
        """
        context, jvm = self.session.sparkContext, self.session._jvm
        with suppress(Py4JError):
            context.cancelAllJobs()
            self.session.catalog.clearCache()
            for rdd in context._jsc.getPersistentRDDs().values():
                rdd.unpersist(False)
            for child in jvm.java.lang.ProcessHandle.current().children().toArray():
                child.destroy()
            self.session._get_j_spark_session_class(jvm).setDefaultSession(self.session._jsparkSession)
            client = context._gateway._gateway_client
            for number in range(first, self._next_object()):
                client.garbage_collect_object(f"o{number}")


if __name__ == "__main__":
    main()
