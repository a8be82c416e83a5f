"""`fluvial topic consume`: the records of a topic as lines."""

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluvial.cli import completion, terminal
from fluvial.cli.options import with_cluster_and_registry
from fluvial.cli.topic.record_filter import FieldFilter
from fluvial.cli.topic.record_range import RecordRange
from fluvial.cli.topic.record_text import Format, KeyFormat, RecordDecoder, line_of, template_of
from fluvial.config import Settings

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

_POLL_SECONDS = 0.2
_BATCH_MAX = 500


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Example:  fluvial topic consume orders --offset -10 --to-end --format json")(consume)


@with_cluster_and_registry
def consume(
    *,
    settings: Settings,
    topic: Annotated[
        str,
        typer.Argument(metavar="TOPIC", help="Topic to read.", show_default=False, autocompletion=completion.topics),
    ],
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start at the earliest offset, not at the latest.")
    ] = False,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="Only this partition; repeatable.", show_default=False),
    ] = None,
    offset: Annotated[
        str | None,
        typer.Option(
            "--offset",
            "-o",
            metavar="N|-N|beginning|end",
            help="Start at this offset in each partition; -N: at the last N offsets.",
            show_default=False,
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Only records with a timestamp from then on: ISO 8601, or how long ago (90s, 15m, 1d12h).",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="TIME",
            help="Only records with an earlier timestamp, up to the current end, from the beginning on if not said.",
            show_default=False,
        ),
    ] = None,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="FIELD=VALUE",
            help="Only records with this value in this field of the decoded value, such as a.b=5; repeatable.",
            show_default=False,
        ),
    ] = None,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", "-n", min=1, help="Stop after so many records.", show_default=False)
    ] = None,
    to_end: Annotated[
        bool, typer.Option("--to-end", help="Stop at what was the end when the command started.")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", min=0.0, help="Stop when no record arrived for this many seconds.", show_default=False
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="Consumer group: go on where it stopped, and commit.", show_default=False),
    ] = None,
    fmt: Annotated[
        Format,
        typer.Option("--format", help="text: values; json: an object with key, offset and the rest; raw: bytes."),
    ] = Format.TEXT,
    template: Annotated[
        str | None,
        typer.Option(
            "--template",
            metavar="TEXT",
            help="Print by kcat's escapes, such as '%t %p %o %k %s\\n'.",
            show_default=False,
        ),
    ] = None,
    headers: Annotated[
        bool, typer.Option("--headers", help="Print headers (name:value,… and a tab) before the key and the value.")
    ] = False,
    key_format: Annotated[
        KeyFormat, typer.Option("--key-format", help="What keys are: int is big-endian, avro has a schema id.")
    ] = KeyFormat.TEXT,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", metavar="TEXT", help="Print the key and this text before a value.", show_default=False
        ),
    ] = None,
    schema: Annotated[
        Path | None, typer.Option("--schema", help="Avro schema file to read values with.", show_default=False)
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option("--subject", help="Read values with the latest schema of this subject.", show_default=False),
    ] = None,
) -> None:
    """
    Print records, one a line, until Ctrl-C or the given end.

    Values in the registry's Avro framing are printed as JSON: timestamps as ISO 8601, bytes as base64, decimals as
    strings. Everything else is printed as text. --template knows %t topic, %p partition, %o offset, %T timestamp in ms,
    %k key and %K its length, %s value and %S its length (-1 for none), %h headers, %% and \\n \\r \\t \\\\ \\xNN; it
    ends no line of itself.
    """
    from fluvial.kafka.admin import admin_of, cluster_errors, describe_cluster, require_topic

    wanted = RecordRange.of(
        partitions=partition, offset=offset, from_beginning=from_beginning, since=since, until=until
    )
    if to_end and group is not None:
        raise typer.BadParameter(
            "--to-end and --group: a group's members do not know each other's end offsets; use only one of the two"
        )
    if group is not None and (partition or offset or since or until):
        raise typer.BadParameter(
            "--group goes on at the group's own offsets: leave out --partition, --offset, --from and --until, or move "
            "the group with `fluvial group reset`"
        )
    if filters and fmt is Format.RAW:
        raise typer.BadParameter("--filter looks at decoded values: leave out --format raw")
    if template is not None and (fmt is Format.JSON or key_separator is not None or headers):
        raise typer.BadParameter(
            "--template says all that is printed: leave out --format json, --key-separator and --headers"
        )
    matching = FieldFilter.of(filters)
    line = line_of(fmt, key_separator=key_separator, headers=headers) if template is None else template_of(template)
    admin = admin_of(settings.cluster)
    known = sorted(require_topic(describe_cluster(settings, admin), topic).partitions)
    tps = [(topic, number) for number in wanted.chosen(topic, known)]
    with ExitStack() as stack:
        decoder = _decoder(stack, settings, fmt, key_format, schema=schema, subject=subject)
        consumer = _consumer(settings, group, "earliest" if wanted.offset == 0 else "latest")
        stack.callback(consumer.close)

        def take(message: "Message") -> bool:
            """Print a record that is wanted; return whether it was."""
            shown = wanted.has(message)
            if shown:
                record = decoder.decode(message)
                shown = matching.matches(record)
            if shown:
                sys.stdout.buffer.write(line(record))
            if group is not None:
                consumer.store_offsets(message)
            return shown

        try:
            with cluster_errors(f"read {topic!r}"):
                ends = None
                if group is not None:
                    consumer.subscribe([topic])
                else:
                    start, bounded = wanted.logical_start, to_end or wanted.until is not None
                    spans = wanted.spans(admin, tps) if bounded or start is None else {}
                    _assign(consumer, {tp: spans[tp][0] if tp in spans else start for tp in tps})
                    if bounded:
                        ends = {number: end for (_, number), (start, end) in spans.items() if end > start}
                read = _read(consumer, take, max_messages, timeout, ends)
        except KeyboardInterrupt:
            return
        finally:
            sys.stdout.flush()
    if read and matching.absent:
        terminal.say(f"none of the {read} records read has a field {' or '.join(map(repr, sorted(matching.absent)))}")


def _decoder(
    stack: ExitStack,
    settings: Settings,
    fmt: Format,
    key_format: KeyFormat,
    *,
    schema: Path | None,
    subject: str | None,
) -> RecordDecoder:
    from fluvial.serde.encoding import Decoder, read_schema

    registry = stack.enter_context(settings.registry.client())
    reader = None
    if fmt is not Format.RAW:
        if schema is not None:
            reader = read_schema(schema)
        elif subject is not None:
            reader = registry.latest(subject).schema
    return RecordDecoder(
        values=None if fmt is Format.RAW else Decoder(registry, reader),
        keys=Decoder(registry) if key_format is KeyFormat.AVRO else None,
        key_format=key_format,
    )


def _consumer(settings: Settings, group: str | None, reset: str) -> "Consumer":
    from confluent_kafka import Consumer

    conf: dict[str, Any] = {
        # Without --group the partitions are assigned by hand: the name is needed by the client and never joined.
        "group.id": group or "fluvial-consume",
        "enable.auto.commit": group is not None,
        # Only what was printed, or passed over, is committed.
        "enable.auto.offset.store": False,
        "auto.offset.reset": reset,
        "fetch.queue.backoff.ms": 10,
        "enable.partition.eof": True,
    }
    return Consumer(settings.cluster.client(**conf))


def _assign(consumer: "Consumer", starts: Mapping[tuple[str, int], int | None]) -> None:
    from confluent_kafka import TopicPartition

    consumer.assign([TopicPartition(*tp, start) for tp, start in starts.items()])


def _read(
    consumer: "Consumer",
    take: "Callable[[Message], bool]",
    max_messages: int | None,
    timeout: float | None,
    ends: dict[int, int] | None,
) -> int:
    """
    Hand records to `take` until it took enough, until each partition has reached its end, or until none comes.

    Returns the number of records read. Raises ClusterError.
    """
    from confluent_kafka import KafkaError

    from fluvial.kafka.admin import ClusterError

    left, waiting, heard, read = max_messages, ends, time.monotonic(), 0
    while left != 0 and waiting != {}:
        for message in consumer.consume(min(_BATCH_MAX, left or _BATCH_MAX), _POLL_SECONDS):
            error, tp = message.error(), message.partition()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise ClusterError(f"cannot read partition {tp} of {message.topic()}: {error.str()}")
            if error is None and (ends is None or message.offset() < ends.get(tp, 0)):
                read, heard = read + 1, time.monotonic()
                if take(message) and left is not None:
                    left -= 1
            # A log may end in markers that are no records: the end is also where the client says so.
            if waiting is not None and (error is not None or message.offset() + 1 >= waiting.get(tp, 0)):
                waiting = {number: end for number, end in waiting.items() if number != tp}
        sys.stdout.flush()
        if timeout is not None and time.monotonic() - heard >= timeout:
            break
    return read
