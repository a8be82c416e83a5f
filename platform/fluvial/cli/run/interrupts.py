"""
Ctrl-C while a command runs tables.

PySpark's handler asks the JVM on the connection that the interrupted thread is reading from, which fails, and Dagster
holds an interrupt back until a step is over. So a thread of its own takes the signal and cancels what Spark is doing.
"""

import os
import signal
import sys
import time
from _thread import interrupt_main
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread, current_thread, main_thread
from typing import Any

from fluvial.cli import terminal
from fluvial.cli.main import EXIT_INTERRUPTED

ENDS_WITHIN_S = 5


@contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """
    End by KeyboardInterrupt when SIGINT comes; within `ENDS_WITHIN_S`, or at the second one, the process ends itself.

    A driver may end at any moment: what a batch has not committed is made again. Threads that are to be interrupted
    with this one must not be there yet.
    """
    if current_thread() is not main_thread():
        yield
        return
    came, over = Event(), Event()
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    watcher = Thread(target=_watch, args=(came, over), name="interrupts", daemon=True)
    watcher.start()
    try:
        yield
    except Exception:
        if came.is_set():
            raise KeyboardInterrupt from None
        raise
    finally:
        over.set()
        if watcher.ident is not None and watcher.is_alive():
            signal.pthread_kill(watcher.ident, signal.SIGINT)
        watcher.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _watch(came: Event, over: Event) -> None:
    signal.sigwait({signal.SIGINT})
    if over.is_set():
        return
    came.set()
    terminal.say("interrupted: cancels what Spark is doing")
    Thread(target=_cancel, args=(over,), name="cancelling", daemon=True).start()
    signal.sigwait({signal.SIGINT})
    if not over.is_set():
        _end()


def _cancel(over: Event) -> None:
    end = time.monotonic() + ENDS_WITHIN_S
    is_told = False
    while not over.wait(0.2):
        if time.monotonic() > end:
            _end()
        if (session := _session()) is not None:
            with suppress(Exception):  # it may be about to stop
                session.sparkContext.cancelAllJobs()
        elif not is_told:
            is_told = True
            interrupt_main()


def _session() -> Any:
    """The session of this process in a JVM; None before there is one, and for a client of Spark Connect."""
    module = sys.modules.get("pyspark.sql")
    return None if module is None else module.SparkSession._instantiatedSession


def _end() -> None:
    sys.stderr.flush()
    os._exit(EXIT_INTERRUPTED)
