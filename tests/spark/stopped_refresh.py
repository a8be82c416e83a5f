"""A refresh of a table from tables that is stopped at one of its steps, as a process that is killed there is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import ModuleType
from typing import Any

import pytest

from fluvial.delta import row_swap
from fluvial.delta.commit import commit_once


class StoppedError(Exception):
    """Stands for the end of a process."""


@contextmanager
def stopped(
    random: Random, monkeypatch: pytest.MonkeyPatch, *refreshes: ModuleType, late: ModuleType | None = None
) -> Iterator[None]:
    """
    Raise StoppedError before anything is written, before the commit, or after it; by `late` at one of late rows too.

    `refreshes` are the modules that commit the table; the first of them also writes it whole.
    """

    def stop(*_arguments: Any, **_keywords: Any) -> Any:
        raise StoppedError

    def stop_after(*arguments: Any, **keywords: Any) -> Any:
        commit_once(*arguments, **keywords)
        raise StoppedError

    def commit_by(modules: tuple[ModuleType, ...], patched: Callable[..., Any]) -> None:
        for module in modules:
            patch.setattr(module, "commit_once", patched)

    steps = ("planned", "commit begun", "committed")
    with monkeypatch.context() as patch:
        match random.choice(steps if late is None else ("late", "late committed", *steps)):
            case "late" if late is not None:
                commit_by((late,), stop)
            case "late committed" if late is not None:
                commit_by((late,), stop_after)
            case "planned":
                commit_by(refreshes, stop)
            case "commit begun":
                patch.setattr(row_swap._Transaction, "commit", stop)
                patch.setattr(refreshes[0], "replace_table", stop)
            case _:
                commit_by(refreshes, stop_after)
        yield
