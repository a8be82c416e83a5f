"""`fluvial consume`: the records of a topic as lines."""

import base64
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluvial.cli.options import with_cluster_and_registry
from fluvial.config import Settings

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

    from fluvial.serde.encoding import Decoder

_POLL_SECONDS = 0.2
_BATCH_MAX = 500
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Format(StrEnum):
    """How a record is printed."""

    TEXT = "text"
    JSON = "json"
    RAW = "raw"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Example:  fluvial consume orders --from-beginning --max-messages 10 --format json")(consume)


@with_cluster_and_registry
def consume(
    *,
    settings: Settings,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to read.", show_default=False)],
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start at the earliest offset, not at the latest.")
    ] = False,
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
    schema: Annotated[
        Path | None, typer.Option("--schema", help="Avro schema file to read values with.", show_default=False)
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option("--subject", help="Read values with the latest schema of this subject.", show_default=False),
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", metavar="TEXT", help="Print the key and this text before a value.", show_default=False
        ),
    ] = None,
) -> None:
    """
    Print records, one a line, until Ctrl-C or the given end.

    Values in the registry's Avro framing are printed as JSON: timestamps as ISO 8601, bytes as base64, decimals as
    strings. Everything else is printed as text.
    """
    from fluvial.kafka.admin import admin_of, cluster_errors, describe_cluster, require_topic

    if to_end and group is not None:
        raise typer.BadParameter(
            "--to-end and --group: a group's members do not know each other's end offsets; use only one of the two"
        )
    partitions = sorted(require_topic(describe_cluster(settings, admin_of(settings.cluster)), topic).partitions)
    with ExitStack() as stack:
        printer = _Printer(
            fmt, key_separator, _decoder(stack, settings, schema, subject) if fmt != Format.RAW else None
        )
        consumer = _consumer(settings, group, from_beginning)
        stack.callback(consumer.close)
        try:
            with cluster_errors(f"read {topic!r}"):
                ends = _ends(consumer, topic, partitions) if to_end else None
                _start(consumer, topic, partitions, group, from_beginning)
                for message in _messages(consumer, max_messages, timeout, ends):
                    printer.print(message)
                    if group is not None:
                        consumer.store_offsets(message)
        except KeyboardInterrupt:
            pass
        finally:
            sys.stdout.flush()


def _decoder(stack: ExitStack, settings: Settings, schema: Path | None, subject: str | None) -> "Decoder":
    from fluvial.serde.encoding import Decoder, read_schema

    registry = stack.enter_context(settings.registry.client())
    if schema is not None:
        return Decoder(registry, read_schema(schema))
    return Decoder(registry, registry.latest(subject).schema if subject is not None else None)


def _consumer(settings: Settings, group: str | None, from_beginning: bool) -> "Consumer":
    from confluent_kafka import Consumer

    conf: dict[str, Any] = {
        # Without --group the partitions are assigned by hand: the name is needed by the client and never joined.
        "group.id": group or "fluvial-consume",
        "enable.auto.commit": group is not None,
        # Only what was printed is committed.
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest" if from_beginning else "latest",
        "fetch.queue.backoff.ms": 10,
        "enable.partition.eof": True,
    }
    return Consumer(settings.cluster.client(**conf))


def _ends(consumer: "Consumer", topic: str, partitions: list[int]) -> dict[int, int]:
    from confluent_kafka import TopicPartition

    from fluvial.kafka.admin import TIMEOUT_SECONDS

    ends = {}
    for number in partitions:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=TIMEOUT_SECONDS)
        if high > low:
            ends[number] = high
    return ends


def _start(consumer: "Consumer", topic: str, partitions: list[int], group: str | None, from_beginning: bool) -> None:
    from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition

    if group is not None:
        consumer.subscribe([topic])
        return
    at = OFFSET_BEGINNING if from_beginning else OFFSET_END
    consumer.assign([TopicPartition(topic, number, at) for number in partitions])


def _messages(
    consumer: "Consumer", max_messages: int | None, timeout: float | None, ends: dict[int, int] | None
) -> Iterator["Message"]:
    """Yield records until there are enough, until each partition has reached its end, or until none comes."""
    from confluent_kafka import KafkaError

    from fluvial.kafka.admin import ClusterError

    left, waiting, heard = max_messages, ends, time.monotonic()
    while left != 0 and waiting != {}:
        for message in consumer.consume(min(_BATCH_MAX, left or _BATCH_MAX), _POLL_SECONDS):
            error, tp = message.error(), message.partition()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise ClusterError(f"cannot read partition {tp} of {message.topic()}: {error.str()}")
            if error is None and (ends is None or message.offset() < ends.get(tp, 0)):
                yield message
                left, heard = None if left is None else left - 1, time.monotonic()
            # A log may end in markers that are no records: the end is also where the client says so.
            if waiting is not None and (error is not None or message.offset() + 1 >= waiting.get(tp, 0)):
                waiting = {number: end for number, end in waiting.items() if number != tp}
        sys.stdout.flush()
        if timeout is not None and time.monotonic() - heard >= timeout:
            return


class _Printer:
    """Prints records in one format."""

    def __init__(self, fmt: Format, key_separator: str | None, decoder: "Decoder | None") -> None:
        self._format = fmt
        self._separator = key_separator
        self._decoder = decoder

    def print(self, message: "Message") -> None:
        """Print a record; raises EncodingError that says where the record is."""
        from fluvial.serde.encoding import EncodingError

        try:
            line = self._line(message)
        except EncodingError as error:
            raise EncodingError(
                f"{message.topic()} partition {message.partition()} offset {message.offset()}: the value {error}; "
                "--format raw prints the bytes"
            ) from error
        sys.stdout.buffer.write(line + b"\n")

    def _line(self, message: "Message") -> bytes:
        key, value = message.key(), message.value()
        if self._decoder is None:
            return self._prefix(key) + (value or b"")
        decoded = None if value is None else self._decoder.decode(value)
        if self._format is Format.JSON:
            return json.dumps(_envelope(message, decoded), ensure_ascii=False).encode()
        if decoded is not None:
            return self._prefix(key) + json.dumps(decoded[1], ensure_ascii=False).encode()
        return self._prefix(key) + (b"null" if value is None else value)

    def _prefix(self, key: bytes | None) -> bytes:
        return b"" if self._separator is None else (key or b"") + self._separator.encode()


def _envelope(message: "Message", decoded: tuple[int, Any] | None) -> dict[str, Any]:
    from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

    kind, time_ms = message.timestamp()
    envelope: dict[str, Any] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": None if kind == TIMESTAMP_NOT_AVAILABLE else _instant(time_ms),
        **_text("key", message.key()),
    }
    if decoded is None:
        envelope |= _text("value", message.value())
    else:
        envelope |= {"schema_id": decoded[0], "value": decoded[1]}
    if headers := message.headers():
        envelope["headers"] = [{"name": name, **_text("value", value)} for name, value in headers]
    return envelope


def _text(name: str, value: bytes | None) -> dict[str, Any]:
    """Return bytes as text under `name`, or in base64 under `<name>_base64` when they are no UTF-8."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _instant(time_ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
