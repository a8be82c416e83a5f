"""A write is believed when the log shows its own run, and no otherwise; no Spark runs here."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hand_written_log import HandWrittenLog

from fluvial.delta.commit import LostRaceError, commit_once, is_lost_race
from fluvial.delta.stamp import Stamp


@pytest.fixture
def table(tmp_path: Path) -> HandWrittenLog:
    return HandWrittenLog(tmp_path / "t")


def stamp(batch: int = 1) -> Stamp:
    return Stamp(topic="t", topic_id=None, batch=batch, offsets={0: (batch - 1, batch)})


def raises(error: Exception) -> Callable[[], None]:
    def write() -> None:
        raise error

    return write


def test_the_commit_of_this_very_run_is_returned(table: HandWrittenLog) -> None:
    mine = stamp()
    found = commit_once(table.log, mine, above=None, write=lambda: table.commit(mine))
    assert found is not None
    assert (found.version, Stamp.of(found)) == (0, mine)


def test_a_write_that_returns_without_a_commit_is_none(table: HandWrittenLog) -> None:
    # Delta skips a batch that is in the table, and says nothing of it.
    table.commit(stamp())
    assert commit_once(table.log, stamp(), above=None, write=lambda: None) is None


def test_another_run_of_the_same_batch_is_not_taken_for_ours(table: HandWrittenLog) -> None:
    table.commit(stamp())
    theirs, mine = stamp(2), stamp(2)
    assert commit_once(table.log, mine, above=0, write=lambda: table.commit(theirs)) is None


def test_a_commit_with_others_upon_it_is_found(table: HandWrittenLog) -> None:
    table.commit(stamp())
    mine = stamp(2)

    def write() -> None:
        table.commit(mine)
        table.commit(stamp(3))

    found = commit_once(table.log, mine, above=0, write=write)
    assert found is not None
    assert found.version == 1


def test_an_error_after_the_commit_does_not_undo_it(table: HandWrittenLog) -> None:
    mine = stamp()

    def write() -> None:
        table.commit(mine)
        raise LostRaceError("what followed the commit was refused")

    found = commit_once(table.log, mine, above=None, write=write)
    assert found is not None


def test_a_lost_race_is_none_and_any_other_error_goes_on(table: HandWrittenLog) -> None:
    table.commit(stamp())
    assert commit_once(table.log, stamp(2), above=0, write=raises(LostRaceError("first"))) is None
    with pytest.raises(ValueError, match="disk"):
        commit_once(table.log, stamp(2), above=0, write=raises(ValueError("disk")))


class Java:
    """An exception of the JVM, with what caused it."""

    def __init__(self, name: str, cause: "Java | None" = None) -> None:
        self._name = name
        self._cause = cause

    def getClass(self) -> "Java":
        return self

    def getSimpleName(self) -> str:
        return self._name

    def getCause(self) -> "Java | None":
        return self._cause


class FromTheJvm(Exception):  # noqa: N818 (what it stands for is decided by its fields)
    """An error as py4j or Spark raises it."""

    def __init__(self, java: Java | None = None, condition: str | None = None) -> None:
        super().__init__("said by the JVM")
        if java is not None:
            self.java_exception = java
        if condition is not None:
            self.getCondition = lambda: condition


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (LostRaceError("t"), True),
        (FromTheJvm(Java("ConcurrentAppendException")), True),
        (FromTheJvm(Java("SparkException", Java("RuntimeException", Java("ConcurrentTransactionException")))), True),
        (FromTheJvm(condition="DELTA_CONCURRENT_APPEND.WITHOUT_HINT"), True),
        (FromTheJvm(Java("SparkException", Java("FileNotFoundException"))), False),
        (FromTheJvm(condition="DELTA_MISSING_TRANSACTION_LOG"), False),
        (ValueError("concurrent"), False),
    ],
)
def test_who_lost_a_race_is_told_by_class_cause_and_condition(error: Any, lost: bool) -> None:
    assert is_lost_race(error) is lost
