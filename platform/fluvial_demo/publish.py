"""
Publishing the feeds with `confluent-kafka`: idempotent, compressed, and only what the log does not hold yet.

As a process of its own, against any cluster:

    python -m fluvial_demo.publish --bootstrap-server HOST:PORT --registry-url http://HOST:PORT

Killed at any time and started again, it reads where each partition of the log ends, checks that the record there is
the feed's, and goes on with the next one.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from fluvial.config import Settings, load_settings
from fluvial.errors import FluvialError
from fluvial.kafka import KafkaCluster
from fluvial.quarantine.reading import waiting
from fluvial.quarantine.records import Quarantined
from fluvial.quarantine.repair import Repairing
from fluvial.quarantine.replay import replay
from fluvial.registry.client import RegistryClient
from fluvial_demo.feeds import FIRST_DAY_END, TOPICS, Feed, all_feeds
from fluvial_demo.placed_feed import PlacedFeed
from fluvial_demo.sender import Sender, log
from fluvial_demo.topic_log import (
    ForeignLogError,
    begins_of,
    decided_ends,
    end_offsets,
    ensure_topic,
    puts_aside,
    read_at,
    settled_ends,
)

OnProgress = Callable[[int, int], None]
"""Called with how many records of a feed the log holds, and how many it will hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What one topic got."""

    topic: str
    records: int
    """How many the feed has."""
    held: int
    """How many of them the log had before."""
    seconds: float
    repaired: Sequence[Quarantined] = ()
    """Those that arrived damaged and have been repaired and replayed now, as they were put aside."""

    @property
    def sent(self) -> int:
        """How many were published now."""
        return self.records - self.held


class Publisher:
    """Brings feeds into the topics of one cluster."""

    def __init__(self, cluster: KafkaCluster, registry: RegistryClient) -> None:
        self._cluster = cluster
        self._registry = registry
        self._sender = Sender(cluster)
        self._admin = AdminClient(cluster.client(logger=log))
        self._consumer = Consumer(
            cluster.client(
                logger=log,
                **{
                    # Only single records are read: no group is joined and nothing is committed.
                    "group.id": "flights-publisher",
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "fetch.wait.max.ms": 20,
                    "queued.max.messages.kbytes": 1024,
                },
            )
        )

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, *_: object) -> None:
        self._sender.close()
        self._consumer.close()

    def publish(self, feed: Feed, on_progress: OnProgress = lambda held, records: None) -> Published:
        """
        Publish what the topic of `feed` does not hold yet, and return when the log has it.

        The topic and its contract are made when missing. Raises `ForeignLogError` when the log holds something else,
        and `PublishError` when the cluster refuses a record or takes none.
        """
        started = time.monotonic()
        schema_id = self._registry.register(feed.subject, feed.contract)
        partitions = ensure_topic(self._admin, feed.topic, partitions=feed.partitions, compacted=feed.compacted)
        damages = bool(feed.damaged) and puts_aside(self._admin, feed.topic)
        placed = PlacedFeed(feed, partitions=partitions, schema_id=schema_id, damages=damages)
        sent, repaired = self._first_day(placed, on_progress) if damages else (0, ())
        held = self._held(placed)
        before = sum(held)
        on_progress(before, len(feed))
        if before < len(feed):
            self._sender.send(feed.topic, placed.missing(held), lambda sent: on_progress(before + sent, len(feed)))
            self._confirm(placed, held)
        seconds = time.monotonic() - started
        return Published(topic=feed.topic, records=len(feed), held=before - sent, seconds=seconds, repaired=repaired)

    def _first_day(self, placed: PlacedFeed, on_progress: OnProgress) -> tuple[int, Sequence[Quarantined]]:
        """
        Publish the first day, damaged as it comes, then repair what was put aside and have it replayed.

        Return how many records were sent, and those that were repaired, as they were before.
        """
        topic, first = placed.feed.topic, placed.first_day
        ends = settled_ends(self._consumer, topic, placed.partitions, first)
        held = [min(end, own) for end, own in zip(ends, first, strict=True)]
        before = sum(held)
        if before < sum(first):
            self._compare(placed, held)
            records = len(placed.feed)
            missing = placed.missing(held, first_day=True)
            self._sender.send(topic, missing, lambda sent: on_progress(before + sent, records))
        settings = Settings(
            bootstrap_servers=self._cluster.bootstrap_servers, kafka_properties=self._cluster.properties, local=False
        )
        repaired = waiting(settings, topic, placed.partitions)
        if repaired:
            repairing = Repairing(
                self._registry, lambda seen: placed.repaired(seen.record.partition, seen.record.offset)
            )
            replay(settings, topic, placed.partitions, repairing)
        time_ms = int(FIRST_DAY_END.timestamp() * 1000)
        ends = decided_ends(self._admin, topic, placed.partitions)
        later = begins_of(self._consumer, topic, placed.partitions, time_ms)
        placed.shifts = [
            later.get(partition, end) - own for partition, (end, own) in enumerate(zip(ends, first, strict=True))
        ]
        return sum(first) - before, repaired

    def _held(self, placed: PlacedFeed) -> list[int]:
        """Return how many of the feed's records each partition holds; the last of them is compared."""
        topic = placed.feed.topic
        ends = settled_ends(self._consumer, topic, placed.partitions, placed.log_ends)
        for partition, (end, own) in enumerate(zip(ends, placed.ends, strict=True)):
            if end > 0 and own == 0:
                raise ForeignLogError(topic, partition, "is not empty")
        # A log may go on past the feed: it was published with a later `until`, or none.
        held = placed.held(ends)
        self._compare(placed, held)
        return held

    def _compare(self, placed: PlacedFeed, held: Sequence[int]) -> None:
        """Compare the last record that each partition holds with the feed's; raises `ForeignLogError`."""
        last = {partition: placed.offset(partition, own - 1) for partition, own in enumerate(held) if own > 0}
        stored = read_at(self._consumer, placed.feed.topic, last) if last else {}
        for partition in last:
            placed.check(partition, held[partition] - 1, stored.get(partition))

    def _confirm(self, placed: PlacedFeed, held: Sequence[int]) -> None:
        """Compare the ends of the log that was written to with the feed's: a second publisher would show here."""
        ends = end_offsets(self._consumer, placed.feed.topic, placed.partitions)
        for partition, (end, expected, own, before) in enumerate(
            zip(ends, placed.log_ends, placed.ends, held, strict=True)
        ):
            if before < own and end != expected:
                raise ForeignLogError(placed.feed.topic, partition, f"ends at {end} and not at {expected}")


def publish_all(
    publisher: Publisher, feeds: Sequence[Feed], console: Console, heard: Mapping[str, OnProgress] | None = None
) -> list[Published]:
    """
    Publish feeds one after another, with a progress bar for each on `console`.

    `heard` has, by topic, who else is to know how far it is.
    """
    bar = Progress(
        TextColumn("  {task.description:<14}"),
        BarColumn(),
        TaskProgressColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    tasks = {feed.topic: bar.add_task(feed.topic, total=len(feed), start=False) for feed in feeds}

    def shown_as(task: TaskID, topic: str) -> OnProgress:
        bar.start_task(task)
        others = (heard or {}).get(topic)

        def show(held: int, records: int) -> None:
            bar.update(task, completed=held)
            if others is not None:
                others(held, records)

        return show

    done = []
    with bar:
        for feed in feeds:
            done.append(publisher.publish(feed, shown_as(tasks[feed.topic], feed.topic)))
            bar.stop_task(tasks[feed.topic])
    return done


def parse_until(text: str) -> datetime:
    """Read a day or an instant (UTC unless it says otherwise); raises ValueError."""
    until = datetime.fromisoformat(text)
    return until if until.tzinfo else until.replace(tzinfo=UTC)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the publisher as a command; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m fluvial_demo.publish",
        description="Publish the flights of 2013 from New York; run again, it goes on where the log ends.",
    )
    parser.add_argument("--bootstrap-server", metavar="HOST:PORT", help="the cluster; the local platform if not given")
    parser.add_argument("--command-config", metavar="FILE", help="properties file: what the cluster asks of clients")
    parser.add_argument("--registry-url", metavar="URL", help="the schema registry; the local one if not given")
    parser.add_argument("--data-dir", metavar="DIR", help="which local platform is meant (default .fluvial)")
    parser.add_argument("--until", metavar="DATE", type=parse_until, help="only events and weather before this day")
    parser.add_argument(
        "--topic", action="append", metavar="NAME", help="only this topic; may be given again", choices=TOPICS
    )
    options = parser.parse_args(arguments)
    console = Console(stderr=True)
    try:
        settings = load_settings(
            bootstrap_servers=options.bootstrap_server,
            command_config=options.command_config,
            registry_url=options.registry_url,
            data_dir=options.data_dir,
        )
        feeds = [feed for feed in all_feeds(options.until) if not options.topic or feed.topic in options.topic]
        with Publisher(settings.cluster, settings.registry.client()) as publisher:
            published = publish_all(publisher, feeds, console)
    except FluvialError as error:
        console.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        return 1
    sent, held = sum(topic.sent for topic in published), sum(topic.held for topic in published)
    console.print(f"{sent:,} records published, {held:,} were there before")
    return 0


if __name__ == "__main__":
    sys.exit(main())
