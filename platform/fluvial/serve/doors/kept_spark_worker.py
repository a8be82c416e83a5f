"""
The process of `--keep-spark`: a session whose JVM is lent to one command at a time.

It is started by :mod:`fluvial.serve.doors.kept_spark`, and asked by :mod:`fluvial.spark.kept`.
"""

import hmac
import secrets
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from py4j.protocol import Py4JError

from fluvial.config import Settings
from fluvial.errors import FluvialError
from fluvial.query import jail
from fluvial.serve.doors.process import given, say_ready, wait_for_the_end
from fluvial.spark import kept
from fluvial.spark.session import build_session, driver_conf

_ASKED_WITHIN_S = 5.0


def main() -> None:
    """
    Keep a session until stdin ends.
    """
    asked = given()
    jail.end_with_parent()
    settings = Settings(
        data_dir=Path(asked["data_dir"]),
        warehouse=asked["warehouse"],
        spark_master=asked["spark_master"],
        spark_conf=asked["spark_conf"],
    )
    try:
        fingerprint = kept.fingerprint(driver_conf(settings))
        lender = Lender(build_session(settings, "fluvial serve"), fingerprint)
    except FluvialError as error:
        sys.exit(str(error))
    with socket.create_server((kept.HOST, 0)) as listener:
        Thread(target=lender.serve, args=(listener,), name="lender", daemon=True).start()
        with kept.noted(settings, listener.getsockname()[1], lender.token):
            say_ready()
            wait_for_the_end()
    lender.session.stop()


@dataclass(slots=True)
class Lender:
    """
    Gives the session's JVM to one process at a time, and clears away what that one left there.
    """

    session: Any
    fingerprint: str
    token: str = field(default_factory=lambda: secrets.token_hex(32))
    _is_lent: Lock = field(default_factory=Lock)

    def serve(self, listener: socket.socket) -> None:
        """
        Answer whoever connects, until the listener is closed.
        """
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, ValueError):
            connection.settimeout(_ASKED_WITHIN_S)
            message = kept.receive(connection)
            if not hmac.compare_digest(str(message.get("token")).encode(), self.token.encode()):
                return
            if message.get("fingerprint") != self.fingerprint:
                kept.send(connection, {"refused": "it has other settings"})
            elif not self._is_lent.acquire(blocking=False):
                kept.send(connection, {"refused": "another command has it"})
            else:
                self._lend(connection)

    def _lend(self, connection: socket.socket) -> None:
        """Lend the session for as long as the connection is open; what is sent on it is read over."""
        try:
            first = self._next_object()
            try:
                gateway = self.session.sparkContext._gateway.gateway_parameters
                kept.send(connection, {"port": gateway.port, "secret": gateway.auth_token})
                connection.settimeout(None)
                while connection.recv(1 << 10):
                    pass
            finally:
                self._clear(first)
        finally:
            self._is_lent.release()

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
