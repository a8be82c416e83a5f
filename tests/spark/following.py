"""
Tables kept up to date in a thread of a test.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from log_topic import Schemas

from fluvial.config import Settings
from fluvial.tables.drive.continuous import Checks, Watcher, follow
from fluvial.tables.plan.result import RunResult

PATIENCE_SECONDS = 300


class Follower:
    """`follow` in a thread, and what it told."""

    def __init__(
        self, declarations: Any, settings: Settings, spark: Any, schemas: Schemas, *, checks: Checks | None = None
    ) -> None:
        self.results: list[RunResult] = []
        self.stopped: dict[str, str] = {}
        self.waited: list[str] = []
        self.errors: Any = None
        self.stop = threading.Event()
        self._failure: BaseException | None = None
        watcher = Watcher(
            batch=self.results.append,
            waiting=self.waited.append,
            stopped=lambda table, error: self.stopped.update({table: str(error)}),
        )

        def run() -> None:
            try:
                self.errors = follow(
                    declarations,
                    settings,
                    spark,
                    self.stop,
                    schemas=schemas,
                    watcher=watcher,
                    checks=checks,
                    records_max=60,
                )
            except BaseException as error:
                self._failure = error

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert self._failure is None, self._failure
            assert time.monotonic() < deadline, (self.results, self.stopped, self.waited)
            time.sleep(0.1)

    def end(self) -> None:
        """Have the batch under way be the last."""
        self.stop.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        assert self._failure is None, self._failure
