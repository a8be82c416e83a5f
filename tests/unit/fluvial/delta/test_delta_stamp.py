"""Positions read back from the commit files of a table."""

import json
from pathlib import Path
from typing import Any

import pytest

from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import MartStamp, newest_made
from fluvial.delta.stamp import Growth, Stamp, TableError, read_position


class Table:
    """A Delta log written by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = TableLog(spark=None, path=str(folder))  # type: ignore[arg-type]
        self.versions = 0

    def commit(self, operation: str = "WRITE", metadata: str | None = None, **metrics: int) -> None:
        info: dict[str, Any] = {"operation": operation, "operationMetrics": {k: str(v) for k, v in metrics.items()}}
        if metadata is not None:
            info["userMetadata"] = metadata
        actions = [{"protocol": {"minReaderVersion": 1}}, {"commitInfo": info}, {"add": {"path": "x"}}]
        actions.append({"txn": {"appId": "fluvial/t", "version": self.versions}})
        (self.folder / "_delta_log").mkdir(parents=True, exist_ok=True)
        path = self.folder / "_delta_log" / f"{self.versions:020d}.json"
        path.write_text("\n".join(json.dumps(action) for action in actions))
        self.versions += 1


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "t")


def stamp(batch: int, **fields: Any) -> Stamp:
    return Stamp(topic="t", topic_id="id", batch=batch, offsets={0: (0, batch), 10: (5, 5), 9: (1, 2)}, **fields)


def test_a_stamp_survives_the_log(table: Table) -> None:
    written = stamp(1, definition="d", adopted={0: 0, 9: 1}, growth=Growth(22, 1_700_000_000_000), skipped={9: (1,)})
    table.commit(metadata=written.as_json(), numOutputRows=7)
    position = read_position(table.log, "history.t")
    assert position.stamp == written
    assert (position.version, position.ends) == (0, {0: 1, 9: 2, 10: 5})
    assert table.log.commit(0).metric("numOutputRows", "nothing") == 7


def test_no_table_is_a_position_too(table: Table) -> None:
    position = read_position(table.log, "history.t")
    assert (position.version, position.stamp, position.ends) == (None, None, {})


def test_version_and_stamp_are_of_one_commit_while_others_go_on(table: Table) -> None:
    class Followed(TableLog):
        """Another driver commits whenever the version is looked up."""

        def newest_version(self) -> int | None:
            found = super().newest_version()
            table.commit(metadata=stamp(table.versions).as_json())
            return found

    table.commit(metadata=stamp(0).as_json())
    position = read_position(Followed(None, str(table.folder)), "history.t")
    assert position.stamp is not None
    assert (position.version, position.stamp.batch) == (0, 0)
    assert table.log.newest_version() == 1


def test_the_newest_stamp_of_a_pipeline_is_found_up_to_a_version(table: Table) -> None:
    made = [MartStamp(pipeline="p", code="1", inputs={}, batch=batch) for batch in range(2)]
    for each in made:
        table.commit(metadata=each.as_json())
    table.commit("OPTIMIZE")
    for until, expected in ((None, made[1]), (1, made[1]), (0, made[0])):
        found = newest_made(table.log, until=until)
        assert found is not None
        assert found.stamp == expected


@pytest.mark.parametrize("theirs", [None, "not json", "[1]", '{"fluvial": 3}', '{"other": {}}'])
def test_commits_of_others_are_passed_over(table: Table, theirs: str | None) -> None:
    table.commit(metadata=stamp(1).as_json())
    table.commit("OPTIMIZE", metadata=theirs)
    position = read_position(table.log, "history.t")
    assert position.version == 1
    assert position.stamp is not None
    assert position.stamp.batch == 1


def test_a_restored_table_is_refused_until_it_is_stamped_again(table: Table) -> None:
    table.commit(metadata=stamp(1).as_json())
    table.commit("RESTORE")
    with pytest.raises(TableError, match="restored to an earlier version"):
        read_position(table.log, "history.t")
    table.commit(metadata=stamp(2).as_json())
    assert read_position(table.log, "history.t").version == 2


def test_a_table_of_someone_else_is_refused(table: Table) -> None:
    table.commit()
    with pytest.raises(TableError, match=r"no run of fluvial wrote.*`fluvial table adopt history\.t` adopts its rows"):
        read_position(table.log, "history.t")


def test_two_stamps_of_one_range_are_told_apart_by_their_runs() -> None:
    assert stamp(1).run != stamp(1).run
