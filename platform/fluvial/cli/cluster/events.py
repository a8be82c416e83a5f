"""`fluvial cluster events`: what happened in the cluster, in plain words."""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluvial.cli import terminal
from fluvial.cli.options import AnswerFormat, Form, with_cluster
from fluvial.config import Settings

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

TOPIC = "__fluvial_events"
_POLL_SECONDS = 0.2
_LOOK_SECONDS = 1.0
_BATCH_MAX = 500

Event = dict[str, Any]


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Example:  fluvial cluster events --since 1h --kind leader_elected --kind broker_fenced")(events)


@with_cluster
def events(
    *,
    settings: Settings,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what happens next, until Ctrl-C.")] = False,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME|DURATION",
            help="From this time on, or the last 90s, 15m, 1d12h.",
            show_default=False,
        ),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind", metavar="KIND", help="Only events of this kind; may be given again.", show_default=False
        ),
    ] = None,
    answer_format: AnswerFormat = Form.TABLE,
) -> None:
    """
    Show what happened in the cluster: nodes that failed and returned, leader elections, lost records.

    Events are retained for 30 days; a cluster that always had a single node has none. JSON is one object per line.
    """
    from fluvial.cli.topic.partitions import start_of
    from fluvial.kafka.admin import admin_of, cluster_errors, describe_cluster

    start_ms = None if since is None else int(start_of("--since", since).timestamp() * 1000)
    admin = admin_of(settings.cluster)
    try:
        while TOPIC not in describe_cluster(settings, admin).topics:
            if not follow:
                terminal.say("nothing has been noted: this cluster has always had one node, or is not fluvial's")
                return
            time.sleep(_LOOK_SECONDS)
        with cluster_errors("read the cluster's events"):
            shown = _shown(_events(settings, start_ms, follow=follow), start_ms, set(kind or ()), answer_format)
        if not shown:
            terminal.say("no such event")
    except KeyboardInterrupt:
        pass


def _shown(found: Iterable[list[Event]], start_ms: int | None, kinds: set[str], answer_format: Form) -> int:
    """Print events as they are found; return how many."""
    shown = 0
    ids: set[str] = set()
    for group in found:
        # Each node notes for itself, so only their times put them in order.
        for event in sorted(group, key=lambda each: each["time_ms"]):
            # One that was written again because its acknowledgement was lost is told once.
            repeated = event.get("id") in ids
            if "id" in event:
                ids.add(event["id"])
            if repeated or (kinds and event["kind"] not in kinds) or event["time_ms"] < (start_ms or 0):
                continue
            terminal.answer(json.dumps(event, ensure_ascii=False) if answer_format is Form.JSON else line_of(event))
            shown += 1
        sys.stdout.flush()
    return shown


def line_of(event: Event) -> str:
    """Return an event as a line to read: when, what kind, what."""
    when = datetime.fromtimestamp(event["time_ms"] / 1000, UTC)
    return f"{when:%Y-%m-%d %H:%M:%S}.{when.microsecond // 1000:03d}Z  {event['kind']:<18}  {event['text']}"


def _events(settings: Settings, start_ms: int | None, *, follow: bool) -> Iterator[list[Event]]:
    """Yield all existing events, and then with `follow` new ones, forever."""
    from confluent_kafka import Consumer, TopicPartition

    from fluvial.kafka.admin import TIMEOUT_SECONDS

    conf = {"group.id": "fluvial-events", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings.cluster.client(**conf, **{"enable.partition.eof": True}))
    try:
        start, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=TIMEOUT_SECONDS)
        if start_ms is not None:
            # Events are written after they happened, so none of those wanted is older than that in the log.
            (found,) = consumer.offsets_for_times([TopicPartition(TOPIC, 0, max(start_ms, 0))], TIMEOUT_SECONDS)
            start = found.offset if found.offset >= 0 else end
        consumer.assign([TopicPartition(TOPIC, 0, start)])
        yield _until(consumer, start, end)
        while follow:
            yield [event for event in map(_event, _polled(consumer)) if event is not None]
    finally:
        consumer.close()


def _until(consumer: "Consumer", start: int, end: int) -> list[Event]:
    from fluvial.kafka.admin import TIMEOUT_SECONDS, ClusterError

    found: list[Event] = []
    at, heard = start, time.monotonic()
    while at < end:
        for message in _polled(consumer):
            heard = time.monotonic()
            # The log may end in what is no record: its end is also where the client says so.
            at = max(at, message.offset() + (message.error() is None)) if message.offset() is not None else at
            if (event := _event(message)) is not None:
                found.append(event)
        if time.monotonic() - heard > TIMEOUT_SECONDS:
            raise ClusterError(f"cannot read the cluster's events: {TOPIC} has no leader that answers; try again")
    return found


def _polled(consumer: "Consumer") -> list["Message"]:
    from confluent_kafka import KafkaError

    from fluvial.kafka.admin import ClusterError

    messages: list[Message] = consumer.consume(_BATCH_MAX, _POLL_SECONDS)
    for message in messages:
        error = message.error()
        # What is passing, a leader that is being elected, the client tries again by itself.
        if error is not None and error.code() != KafkaError._PARTITION_EOF and not error.retriable():
            raise ClusterError(f"cannot read the cluster's events: {error.str()}")
    return messages


def _event(message: "Message") -> Event | None:
    """Read a record; None for what is no event of ours."""
    if message.error() is not None or message.value() is None:
        return None
    try:
        event = json.loads(message.value())
    except ValueError:
        return None
    known = isinstance(event, dict) and isinstance(event.get("time_ms"), int) and {"kind", "text"} <= event.keys()
    return event if known else None
