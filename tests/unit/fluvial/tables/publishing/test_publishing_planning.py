"""What is left to publish, and what is refused."""

from dataclasses import replace

import pytest

from fluvial.delta.stamp import TableError
from fluvial.spark.kafka import TopicBounds, TopicError
from fluvial.tables.declare.declarations import publish
from fluvial.tables.publishing.planning import Step, check_topic, plan_steps
from fluvial.tables.publishing.progress import Progress, Version, read_record

NAME = "topics.fleet"
DECLARED = publish("state.aircraft", topic="fleet", key="icao24")
BOUNDS = TopicBounds(topic="fleet", topic_id="one", starts={0: 0, 1: 0}, ends={0: 7, 1: 0})
NOTHING = Progress(table="state.aircraft", key="icao24", topic_id="one", partitions=2)


def version(number: int) -> Version:
    return Version(number=number, commit=f"c{number}")


def commit_of(number: int) -> str:
    return f"c{number}"


@pytest.mark.parametrize(
    ("progress", "steps"),
    [
        (NOTHING, [Step(since=None, until=version(9))]),
        (replace(NOTHING, done=version(4)), [Step(since=version(4), until=version(9))]),
        (replace(NOTHING, done=version(9)), []),
        (
            replace(NOTHING, done=version(4), next=version(6), after="k"),
            [Step(since=version(4), until=version(6), after="k"), Step(since=version(6), until=version(9))],
        ),
        (replace(NOTHING, next=version(9), after="k"), [Step(since=None, until=version(9), after="k")]),
    ],
)
def test_a_version_left_in_the_middle_is_finished_first(progress: Progress, steps: list[Step]) -> None:
    assert plan_steps(NAME, progress, version(9), commit_of) == steps
    assert Progress.of(progress.as_json().encode()) == progress


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"{}", b'{"table": "t", "key": "k", "topic_id": null}'])
def test_a_record_of_progress_that_tells_nothing_is_named(text: bytes) -> None:
    with pytest.raises(
        TopicError, match=r"record of topics\.fleet at offset 7 of fluvial-publish-progress .*--rebuild"
    ):
        read_record(text, NAME, 7)


def test_a_table_with_the_same_numbers_and_other_commits_is_another() -> None:
    with pytest.raises(TableError, match=r"recreated since its version 4 .*--rebuild topics\.fleet"):
        plan_steps(NAME, replace(NOTHING, done=Version(number=4, commit="other")), version(9), commit_of)
    with pytest.raises(TableError, match="recreated since its version 12"):
        plan_steps(NAME, replace(NOTHING, done=version(12)), version(9), commit_of)
    # A commit that is no longer in the log says nothing.
    assert plan_steps(NAME, replace(NOTHING, done=version(4)), version(9), lambda _number: None)


@pytest.mark.parametrize(
    ("progress", "bounds", "told"),
    [
        (None, BOUNDS, "holds records already"),
        (replace(NOTHING, table="state.ships"), BOUNDS, "where state.ships was published"),
        (replace(NOTHING, key="tail"), BOUNDS, "by tail"),
        (NOTHING, None, "was deleted since"),
        (NOTHING, replace(BOUNDS, topic_id="two"), "deleted and recreated"),
        (NOTHING, replace(BOUNDS, starts={0: 0}, ends={0: 9}), "from 2 to 1 partitions"),
        (replace(NOTHING, rebuilding=True), BOUNDS, "rebuild of topics.fleet was not finished"),
    ],
)
def test_a_topic_that_is_not_what_was_left_is_refused(
    progress: Progress | None, bounds: TopicBounds | None, told: str
) -> None:
    with pytest.raises(TableError, match=told):
        check_topic(DECLARED, progress, bounds)


def test_a_topic_that_is_empty_or_not_there_is_taken() -> None:
    check_topic(DECLARED, None, None)
    check_topic(DECLARED, None, replace(BOUNDS, ends={0: 0, 1: 0}))
    check_topic(DECLARED, NOTHING, BOUNDS)
