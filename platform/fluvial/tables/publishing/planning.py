"""
What a run has to publish: from the version that the topic holds to the newest one. Pure: nothing is asked or written.
"""

from collections.abc import Callable
from dataclasses import dataclass

from fluvial.delta.errors import TableError
from fluvial.spark.kafka import TopicBounds
from fluvial.tables.declare.declarations import Publication
from fluvial.tables.publishing.progress import Progress, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The changes from one version to another; of those the ones with keys above `after`, None for all."""

    since: Version | None
    until: Version
    after: str | None = None


def plan_steps(name: str, progress: Progress, newest: Version, commit_of: Callable[[int], str | None]) -> list[Step]:
    """
    The steps that bring the topic of publication `name` to `newest`: first the rest of a version left in the middle.

    `commit_of` knows the commit of a version that is still in the table's log, None for one that is not. Raises
    TableError for a table that is not the one that was published.
    """
    done = progress.done
    for known in (done, progress.next):
        if known is not None and (known.number > newest.number or commit_of(known.number) not in {None, known.commit}):
            raise TableError(
                f"{progress.table} was removed and recreated since its version {known.number} was published: "
                f"{_rebuild(name)}"
            )
    steps = []
    if progress.next is not None:
        steps.append(Step(since=done, until=progress.next, after=progress.after))
        done = progress.next
    if done is None or done.number < newest.number:
        steps.append(Step(since=done, until=newest))
    return steps


def check_topic(declaration: Publication, progress: Progress | None, bounds: TopicBounds | None) -> None:
    """
    Raise TableError when what is in the topic is not what the progress says; `bounds` is None where it is not there.
    """
    topic, name = declaration.topic, declaration.table
    if progress is None:
        if bounds is not None and bounds.ends != bounds.starts:
            raise TableError(
                f"{topic} holds records already, and nothing tells of which version of {declaration.source} they are: "
                f"publish to a topic of another name, or {_rebuild(name)}"
            )
        return
    if (progress.table, progress.key) != (declaration.source, declaration.key):
        raise TableError(
            f"{topic} is where {progress.table} was published by {progress.key}, not {declaration.source} by "
            f"{declaration.key}: publish to a topic of another name, or {_rebuild(name)}"
        )
    if progress.rebuilding:
        raise TableError(f"a rebuild of {name} was not finished: {_rebuild(name)}")
    if bounds is None:
        raise TableError(f"topic {topic} was deleted since {declaration.source} was published to it: {_rebuild(name)}")
    if progress.topic_id and bounds.topic_id and progress.topic_id != bounds.topic_id:
        raise TableError(
            f"topic {topic} was deleted and recreated since {declaration.source} was published to it: {_rebuild(name)}"
        )
    check_partitions(name, progress, bounds)


def check_partitions(name: str, progress: Progress, bounds: TopicBounds) -> None:
    """
    Raise TableError when the topic has another number of partitions than it had, so that keys are no longer in theirs.
    """
    of_same = not (progress.topic_id and bounds.topic_id) or progress.topic_id == bounds.topic_id
    if of_same and progress.partitions != len(bounds.ends):
        raise TableError(
            f"topic {bounds.topic} went from {progress.partitions} to {len(bounds.ends)} partitions, and a key's next "
            f"record may lie in another one than its last: publish to a topic of another name, or delete this one and "
            f"`fluvial run --rebuild {name}`"
        )


def lost_version(declaration: Publication) -> str:
    """
    What is said where the version that was published last can no longer be read.
    """
    return (
        f"the version of {declaration.source} that was last published is no longer there to compare with (VACUUM took "
        f"its files, or its log was cleaned): {_rebuild(declaration.table)}"
    )


def _rebuild(name: str) -> str:
    return f"`fluvial run --rebuild {name}` compares the topic with the table and publishes what differs"
