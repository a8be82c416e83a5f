"""Which offsets a version holds and which versions hold an offset, read from commits written by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
from hand_written_log import HandWrittenLog

from fluvial.delta.errors import TableError
from fluvial.delta.log import TableLog
from fluvial.delta.provenance import Sighting, offsets_of_version, versions_of_offset
from fluvial.delta.stamp import Range, Stamp


class Table(HandWrittenLog):
    """Commits of ranges of one partition, 0, and of others' between them."""

    batches = 0

    def read(self, start: int, end: int, rewritten: Range | None = None) -> None:
        self.batches += 1
        stamp = Stamp(topic="t", topic_id=None, batch=self.batches, offsets={1: (0, 0), 0: (start, end)})
        self.commit(replace(stamp, rewritten={0: rewritten}) if rewritten else stamp)

    def upkeep(self) -> None:
        self.commit(None, "OPTIMIZE")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Versions 0 to 3: [10, 20), [20, 25), upkeep, [25, 30)."""
    table = Table(tmp_path / "t")
    table.read(10, 20)
    table.read(20, 25)
    table.upkeep()
    table.read(25, 30)
    return table


def test_a_version_holds_what_is_below_the_ends_of_its_commit(table: Table) -> None:
    newest, upkeep, first = (offsets_of_version(table.log, version) for version in (None, 2, 0))
    assert (newest.version, newest.stamped_by, newest.ends, newest.read) == (
        3,
        3,
        {0: 30, 1: 0},
        {0: (25, 30), 1: (0, 0)},
    )
    assert (upkeep.version, upkeep.stamped_by, upkeep.ends) == (2, 1, {0: 25, 1: 0})
    assert (first.ends, first.read[0], first.rewritten, first.topic) == ({0: 20, 1: 0}, (10, 20), False, "t")


@pytest.mark.parametrize("version", [-1, 4])
def test_a_version_that_is_not_there_is_said_with_those_that_are(table: Table, version: int) -> None:
    with pytest.raises(TableError, match=f"no version {version}: its versions are 0 to 3"):
        offsets_of_version(table.log, version)


def test_no_table_holds_nothing(tmp_path: Path) -> None:
    log = TableLog(None, str(tmp_path / "t"))
    with pytest.raises(TableError, match="there is no table"):
        offsets_of_version(log)
    assert versions_of_offset(log, 0, 0) is None


def test_an_offset_is_in_every_version_from_that_which_took_it_in(table: Table) -> None:
    for offset, first in ((10, 0), (19, 0), (20, 1), (24, 1), (25, 3), (29, 3)):
        assert versions_of_offset(table.log, 0, offset) == Sighting(first=first, newest=3)


def test_an_offset_that_is_not_read_or_was_gone_before_is_in_none(table: Table) -> None:
    assert versions_of_offset(table.log, 0, 30) is None
    assert versions_of_offset(table.log, 0, 9) is None
    assert versions_of_offset(table.log, 1, 0) is None
    assert versions_of_offset(table.log, 7, 0) is None


def test_versions_that_made_a_row_again_are_named(table: Table) -> None:
    table.read(30, 30, rewritten=(12, 22))
    table.read(30, 30, rewritten=(22, 25))
    table.read(30, 40)
    assert versions_of_offset(table.log, 0, 11) == Sighting(first=0, newest=6)
    assert versions_of_offset(table.log, 0, 12) == Sighting(first=0, newest=6, rewritten=(4,))
    assert versions_of_offset(table.log, 0, 21) == Sighting(first=1, newest=6, rewritten=(4,))
    assert versions_of_offset(table.log, 0, 22) == Sighting(first=1, newest=6, rewritten=(5,))
    again = offsets_of_version(table.log, 4)
    assert (again.rewritten, again.read, again.ends) == (True, {0: (12, 22)}, {0: 30, 1: 0})


def test_a_commit_that_was_cleaned_away_is_not_guessed_at(table: Table) -> None:
    table.clean(below=1)
    assert versions_of_offset(table.log, 0, 20) == Sighting(first=1, newest=3)
    with pytest.raises(TableError, match="offset 12 of partition 0 in is gone"):
        versions_of_offset(table.log, 0, 12)
    with pytest.raises(TableError, match="no commit up to version 0"):
        offsets_of_version(table.log, 0)
