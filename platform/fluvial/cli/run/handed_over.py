"""A command that a process of `fluvial serve --keep-spark` runs, which has imported already what it needs."""

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise

from fluvial.config import Settings, load_settings
from fluvial.errors import FluvialError
from fluvial.spark import kept

_RUNS_HERE = "FLUVIAL_RUNS_HERE"
# With these a run is none of that process's.
_NOT_THERE = frozenset({"--continuous", "--dry-run", "--help"})


def hand_over_unread(words: Sequence[str]) -> int | None:
    """
    Do what :func:`hand_over` does with a command line that nobody has read yet, which that process does as well.

    None where it has to be read here.
    """
    if not _NOT_THERE.isdisjoint(words):
        return None
    try:
        settings = load_settings(data_dir=_option("--data-dir", words), profile=_option("--profile", words))
    except FluvialError:
        return None
    return hand_over(settings)


def _option(name: str, words: Sequence[str]) -> str | None:
    """What is given for an option, the last time that it is."""
    given = [after for word, after in pairwise(words) if word == name]
    given += [word.removeprefix(f"{name}=") for word in words if word.startswith(f"{name}=")]
    return given[-1] if given else None


def hand_over(settings: Settings) -> int | None:
    """
    Run the command line of this process there, with this process's terminal; return its exit status.

    None where no such process is kept, and in the process that runs it.
    """
    if os.environ.pop(_RUNS_HERE, None):
        return None
    link = kept.connected(settings, kept.COMMANDS)
    if link is None:
        return None
    asked = {
        "words": sys.argv[1:], "cwd": os.getcwd(), "umask": _umask(), "environment": {**os.environ, _RUNS_HERE: "1"}
    }  # fmt: skip
    sys.stdout.flush()
    with link:
        try:
            socket.send_fds(link, [json.dumps(asked).encode()], [0, 1, 2])
            command = int(link.recv(64))
        except (OSError, ValueError):
            return None
        with _passing_signals_on(command), suppress(OSError, ValueError):
            status = int(link.recv(64))
            return status if status >= 0 else 128 - status
    return 1


@contextmanager
def _passing_signals_on(command: int) -> Iterator[None]:
    """What this process is sent is meant for the command."""

    def pass_on(number: int, frame: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(command, number)

    former = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
