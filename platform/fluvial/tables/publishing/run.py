"""
Bringing a topic up to date with the table that is published to it.

The transaction that holds the changes of a version also holds the version, so a run may be killed anywhere and started
again, or run twice at once: readers of committed records see each change once, those of a key in the order of versions.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from fluvial.delta.errors import TableError
from fluvial.kafka.admin import admin_of, await_broker
from fluvial.spark.kafka import TopicBounds, topic_bounds
from fluvial.tables.declare.declarations import Publication
from fluvial.tables.plan.result import RunResult
from fluvial.tables.publishing.planning import Step, check_partitions, check_topic, plan_steps
from fluvial.tables.publishing.progress import (
    Progress,
    UnsettledError,
    Version,
    asked,
    has_topic,
    make_topic,
    once_known,
    read_progress,
    require_progress_topic,
)
from fluvial.tables.publishing.transactions import RECORDS_MAX, Publisher, Record

if TYPE_CHECKING:
    from fluvial.config import Settings

TOPIC_CONFIG = {"cleanup.policy": "compact"}


class Source(Protocol):
    """
    What is published; `fluvial.tables.publishing.table.DeltaSource` is one.
    """

    def newest(self) -> Version:
        """The newest version."""
        ...

    def commit_of(self, number: int) -> str | None:
        """The id of a version's commit; None where it is not known any more."""
        ...

    def changes(self, step: Step, *, unordered_max: int) -> AbstractContextManager[Iterator[Record]]:
        """The records of a step, one a changed key; by their keys where there are more than `unordered_max`."""
        ...

    def differences(self, version: Version, bounds: TopicBounds) -> AbstractContextManager[Iterator[Record]]:
        """The records that the topic lacks to hold a version."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationRun:
    """A run of a publication. Its methods raise TableError, TopicError and what the source raises."""

    declaration: Publication
    settings: "Settings"
    source: Source
    say: Callable[[str], None] = lambda _line: None
    records_max: int = RECORDS_MAX

    @property
    def name(self) -> str:
        return self.declaration.table

    def run(self) -> RunResult:
        """
        Publish what the topic lacks of the newest version.
        """
        newest = self.source.newest()
        skipped = self.skipped(newest)
        if skipped is not None:
            return skipped
        publisher = self._begin()
        # Asked again, now that no other publisher can add to it.
        progress = read_progress(self.settings, self.name)
        check_topic(self.declaration, progress, self._bounds())
        if progress is None:
            progress = self._nothing_yet()
            publisher.claim(progress)
        before, rows = progress.done, 0
        for step in plan_steps(self.name, progress, newest, self.source.commit_of):
            self.say(f"{self.name}: version {step.until.number} of {self.declaration.source}")
            with self.source.changes(step, unordered_max=self.records_max) as records:
                rows += publisher.publish(
                    records,
                    version=step.until.number,
                    done=replace(progress, done=step.until, next=None, after=None),
                    under_way=lambda key: replace(progress, done=step.since, next=step.until, after=key),  # noqa: B023
                    records_max=self.records_max,
                )
        return self._result(before, newest, rows=rows)

    def skipped(self, newest: Version) -> RunResult | None:
        """
        The result of a run where the topic holds the newest version; None where it lacks something.
        """
        with asked(f"publish {self.name}"):
            await_broker(admin_of(self.settings.cluster), self.settings.cluster)
        return self._result(newest, newest, rows=0) if self._is_up_to_date(newest) else None

    def rebuild(self) -> RunResult:
        """
        Compare the topic with the table and publish what differs, whatever the progress says.
        """
        newest = self.source.newest()
        publisher = self._begin()
        found, bounds = read_progress(self.settings, self.name), self._bounds()
        if found is not None and bounds is not None:
            check_partitions(self.name, found, bounds)
        comparing = replace(self._nothing_yet(), rebuilding=True)
        publisher.claim(comparing)
        self.say(f"{self.name}: comparing the topic with version {newest.number} of {self.declaration.source}")
        with self.source.differences(newest, self._made()) as records:
            rows = publisher.publish(
                records,
                version=newest.number,
                done=replace(comparing, done=newest, rebuilding=False),
                under_way=lambda _key: comparing,
                records_max=self.records_max,
            )
        return self._result(None, newest, rows=rows)

    def published(self) -> tuple[Version, TopicBounds]:
        """
        The version that the topic says it holds, and what is in it.
        """
        found, bounds = read_progress(self.settings, self.name), self._bounds()
        check_topic(self.declaration, found, bounds)
        if found is None or bounds is None or found.done is None or found.next is not None:
            raise TableError(f"{self.name} does not hold a whole version yet: run it first (`fluvial run {self.name}`)")
        return found.done, bounds

    def _is_up_to_date(self, newest: Version) -> bool:
        """Whether the topic holds a version, asked without ending another run."""
        try:
            found = read_progress(self.settings, self.name, wait=False)
        except UnsettledError:
            # It may be one of ours that was killed, which is ended by beginning.
            return False
        check_topic(self.declaration, found, self._bounds())
        return found is not None and not plan_steps(self.name, found, newest, self.source.commit_of)

    def _begin(self) -> Publisher:
        """Become the only publisher."""
        with asked("make the topic of all progress"):
            require_progress_topic(admin_of(self.settings.cluster))
        return Publisher(self.settings, self.name, self.declaration.topic)

    def _bounds(self) -> TopicBounds | None:
        with asked(f"look for topic {self.declaration.topic}"):
            if not has_topic(admin_of(self.settings.cluster), self.declaration.topic):
                return None
        return topic_bounds(self.settings.cluster, self.declaration.topic)

    def _made(self) -> TopicBounds:
        """What the topic holds, which is made if it is not there."""
        bounds = self._bounds()
        if bounds is None:
            with asked(f"make topic {self.declaration.topic}"):
                make_topic(admin_of(self.settings.cluster), self.declaration.topic, config=TOPIC_CONFIG)
            bounds = once_known(lambda: topic_bounds(self.settings.cluster, self.declaration.topic))
        return bounds

    def _nothing_yet(self) -> Progress:
        bounds = self._made()
        return Progress(
            table=self.declaration.source,
            key=self.declaration.key,
            topic_id=bounds.topic_id,
            partitions=len(bounds.ends),
        )

    def _result(self, before: Version | None, newest: Version, *, rows: int) -> RunResult:
        return RunResult(
            table=self.name,
            kind=self.declaration.kind,
            skipped=before == newest,
            version_before=None if before is None else before.number,
            version_after=newest.number,
            inputs={self.declaration.source: newest.number},
            rows=rows,
        )
