"""What the commands say: answers on stdout, everything else on stderr."""

import os
import sys
import time
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_MAX = 100_000


def answer(line: str) -> None:
    """Print a line of the answer on stdout."""
    sys.stdout.write(f"{line}\n")


def say(line: str) -> None:
    """Tell the user something beside the answer, on stderr."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def complain(message: str) -> None:
    """Print an error as the one line that it is."""
    say(f"error: {' '.join(message.split())}")


@cache
def stdout() -> "Console":
    """The console of answers that are drawn for a reader, such as tables."""
    from rich.console import Console

    return Console(highlight=False, markup=False)


@cache
def stderr() -> "Console":
    """The console of progress."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False)


def table(columns: Iterable[str], rows: Iterable[Iterable[object]], console: "Console | None" = None) -> None:
    """Print a table to read as an answer; nothing where there are no rows."""
    from rich.console import Console
    from rich.table import Table

    drawn = Table()
    for name in columns:
        # On a narrow terminal a long value goes on in the next line of its cell.
        drawn.add_column(name, overflow="fold")
    for row in rows:
        drawn.add_row(*map(str, row))
    if drawn.row_count:
        # Into a pipe or a file a table is as wide as it wants.
        width = None if sys.stdout.isatty() else WIDTH_MAX
        (console or Console(highlight=False, markup=False, width=width)).print(drawn)


def keep_stdout_for_the_answer() -> BinaryIO:
    """
    Send what this process and those it starts print on stdout to stderr; return the real stdout.

    A JVM inherits the file descriptor, not Python's `sys.stdout`, so the descriptor itself is turned round.
    """
    sys.stdout.flush()
    real = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return real


def read_times_in_utc() -> None:
    """Have Spark give this process timestamps in UTC, and not in the machine's zone."""
    os.environ["TZ"] = "UTC"
    time.tzset()
