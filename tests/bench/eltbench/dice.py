"""
LakeBench's merges without chance: the statements are its own, but what they throw dice for is told by a line's numbers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tests.bench.eltbench.phases import SEEDS

# A number from 0 to below 1 with three digits, so that amounts have cents and no more.
THROWN = "(CAST(MOD(ss.ss_ticket_number * 7 + ss.ss_item_sk * 31, 1000) AS DOUBLE) / 1000)"


class Seeds:
    """Stands for numpy in LakeBench's implementations, which ask it for a seed before each merge."""

    def __init__(self) -> None:
        self.random = self
        self._left = iter(SEEDS)

    def randint(self, *_bounds: Any, **_named: Any) -> int:
        """The next seed."""
        return next(self._left)


class _TakenError(Exception):
    """Ends a merge once its rows are known."""


@contextmanager
def without_dice(session: Any) -> Iterator[None]:
    """Have the statements of a session throw none."""
    ask = session.sql
    session.sql = lambda text: ask(text.replace("rand()", THROWN))
    try:
        yield
    finally:
        del session.sql


def rows_of(session: Any, merge: Callable[[], None]) -> Any:
    """The frame of the rows that LakeBench's merge begins with, without the merge itself."""
    ask, taken = session.sql, []

    def take(text: str) -> None:
        taken.append(ask(text.replace("rand()", THROWN)))
        raise _TakenError

    session.sql = take
    try:
        with suppress(_TakenError):
            merge()
    finally:
        del session.sql
    (frame,) = taken
    return frame
