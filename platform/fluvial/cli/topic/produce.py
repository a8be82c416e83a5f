"""`fluvial topic produce`: lines and rows of the input as records of a topic."""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from fluvial.cli import terminal
from fluvial.cli.options import with_cluster_and_registry
from fluvial.cli.topic.lines import LINE_BYTES_MAX, LineError, LineReader
from fluvial.cli.topic.rows import Record, RowReader
from fluvial.cli.topic.tabular import csv_records, parquet_records
from fluvial.config import Settings

if TYPE_CHECKING:
    from confluent_kafka import Message

    from fluvial.serde.encoding import Encoder

DELIVERY_SECONDS = 30.0
"""How long the cluster may take no record before we give up."""

TELL_SECONDS = 2.0
"""How long records may be refused for a passing reason before we say so; the client tries on."""

_POLL_SECONDS = 0.2


class InputFormat(StrEnum):
    """What the input is."""

    LINES = "lines"
    CSV = "csv"
    PARQUET = "parquet"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        epilog="Example:  fluvial topic produce orders --subject orders-value --key-field order_id < orders.jsonl"
    )(produce)


@with_cluster_and_registry
def produce(
    *,
    settings: Settings,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to write to.", show_default=False)],
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="Read this file (default: stdin).", show_default=False),
    ] = None,
    input_format: Annotated[
        InputFormat,
        typer.Option("--input-format", help="lines: text or JSON, one a line; csv: with a header row; parquet."),
    ] = InputFormat.LINES,
    schema: Annotated[
        Path | None,
        typer.Option("--schema", help="Avro schema file (.avsc); it must be registered.", show_default=False),
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(
            "--subject", help="Subject whose schema is used; its latest without --schema.", show_default=False
        ),
    ] = None,
    key_field: Annotated[
        str | None,
        typer.Option(
            "--key-field",
            metavar="FIELD",
            help='Field of the value that is the key (default: the schema\'s "fluvial.key").',
            show_default=False,
        ),
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", metavar="TEXT", help="Text between key and value of a line.", show_default=False
        ),
    ] = None,
    timestamp_field: Annotated[
        str | None,
        typer.Option(
            "--timestamp-field",
            metavar="FIELD",
            help="Field of the value that is the record's timestamp: ISO 8601, or milliseconds of Unix time.",
            show_default=False,
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="NAME=VALUE", help="A header of each record; repeatable.", show_default=False
        ),
    ] = None,
    header_field: Annotated[
        list[str] | None,
        typer.Option(
            "--header-field",
            metavar="[NAME=]FIELD",
            help="A header with the content of a field of the value; repeatable.",
            show_default=False,
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition", "-p", min=0, help="Write to this partition (default: by the key).", show_default=False
        ),
    ] = None,
) -> None:
    """
    Write each line or row of the input as a record.

    With --schema or --subject a line is JSON and is written as Avro in the registry's framing; `null` is a tombstone.
    Timestamps are ISO 8601, bytes base64, decimals strings. Otherwise a line is a plain string. The cells of CSV are
    read by the schema, an empty one as null where its field may be null; a row without a schema is written as JSON. A
    field that is the key, the timestamp or a header, and that the schema does not have, is left out of the value.
    """
    if key_field is not None and key_separator is not None:
        raise typer.BadParameter("--key-field and --key-separator: give one of them")
    if key_separator == "":
        raise typer.BadParameter("--key-separator: give the text between key and value")
    if key_separator is not None and input_format is not InputFormat.LINES:
        raise typer.BadParameter("--key-separator splits lines: name a column of the rows with --key-field")
    headers, header_fields = _headers(header), _header_fields(header_field)
    with ExitStack() as stack:
        lines = sys.stdin.buffer if file is None else stack.enter_context(_opened(file))
        sender = _Sender(settings, topic, partition)
        encoder = _encoder(settings, topic, subject, schema) if schema or subject else None
        if encoder is not None and key_field is None and key_separator is None:
            key_field = encoder.key_field
        rows = RowReader(
            encode=None if encoder is None else encoder.encode,
            fields=frozenset() if encoder is None else encoder.fields,
            key_field=key_field,
            timestamp_field=timestamp_field,
            header_fields=header_fields,
            headers=headers,
        )
        match input_format:
            case InputFormat.LINES:
                records = _records(LineReader(rows=rows, key_separator=key_separator), lines)
            case InputFormat.CSV:
                records = csv_records(lines, rows, None if encoder is None else encoder.of_texts)
            case InputFormat.PARQUET:
                records = parquet_records(lines, rows)
        try:
            for record in records:
                sender.send(record)
        except LineError as error:
            sender.finish()
            raise LineError(
                error.number, f"{error.why} ({sender.written} records before it written)", unit=error.unit
            ) from error
        sender.finish()
    terminal.say(f"{sender.written} records written to {topic}")


def _opened(file: Path) -> BinaryIO:
    try:
        return file.open("rb")
    except OSError as error:
        raise typer.BadParameter(f"--file {file}: {error.strerror}") from error


def _headers(words: list[str] | None) -> tuple[tuple[str, bytes | None], ...]:
    found = []
    for word in words or ():
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"--header {word!r}: write NAME=VALUE")
        found.append((name, value.encode()))
    return tuple(found)


def _header_fields(words: list[str] | None) -> dict[str, str]:
    found = {}
    for word in words or ():
        name, equals, field = word.partition("=")
        if not name or (equals and not field):
            raise typer.BadParameter(f"--header-field {word!r}: write FIELD or NAME=FIELD")
        found[name] = field or name
    return found


def _encoder(settings: Settings, topic: str, subject: str | None, schema: Path | None) -> "Encoder":
    from fluvial.serde.encoding import Encoder

    with settings.registry.client() as registry:
        return Encoder.of(registry, topic=topic, subject=subject, schema=schema)


def _records(reader: LineReader, lines: BinaryIO) -> Iterator[Record]:
    number = 0
    while line := lines.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise LineError(number, f"is longer than {LINE_BYTES_MAX} bytes")
        record = reader.read(number, line.removesuffix(b"\n").removesuffix(b"\r"))
        if record is not None:
            yield record


class _Refusals:
    """
    The client's log, for the one thing that it tells nowhere else: why it is trying again.

    A full disk is such a reason: without this the user would learn nothing until the records are given up.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.since = 0.0

    def log(self, level: int, template: str, *words: str) -> None:
        """Take a line of the log, as a `logging.Logger` does; called while the producer is polled."""
        _, found, cluster_errors = (template % words if words else template).partition("encountered error: ")
        if found:
            if self.reason is None:
                self.since = time.monotonic()
            self.reason = cluster_errors.partition(" (actions")[0]

    def over(self) -> None:
        """Note that a record was taken."""
        self.reason = None


class _Sender:
    """An idempotent producer that stops at the first record the cluster refuses."""

    def __init__(self, settings: Settings, topic: str, partition: int | None) -> None:
        from confluent_kafka import Producer

        from fluvial.kafka.admin import ClusterError, admin_of, describe_cluster, require_topic

        self._cluster = settings.cluster
        self._metadata = describe_cluster(settings, admin_of(settings.cluster))
        known = require_topic(self._metadata, topic).partitions
        if partition is not None and partition not in known:
            raise ClusterError(f"topic {topic!r} has no partition {partition}; it has {len(known)}, from 0 on")
        self.written = 0
        self._place = {} if partition is None else {"partition": partition}
        self._topic = topic
        self._refused: Any = None
        self._invalid: list[Message] = []  # the records of refused batches, the cause among them
        self._refusals = _Refusals()
        self._told = False
        self._producer = Producer(
            settings.cluster.client(
                # As the Java client spreads keys, so that one key is on one partition whoever writes it.
                partitioner="murmur2_random",
                **{
                    "enable.idempotence": True,
                    "compression.type": "lz4",
                    "linger.ms": 5,
                    "message.timeout.ms": int(DELIVERY_SECONDS * 1000),
                    "on_delivery": self._on_delivery,
                    "debug": "msg",
                    "logger": self._refusals,
                },
            )
        )

    def send(self, record: Record) -> None:
        """Hand a record over; raises ClusterError when an earlier one was refused or none is taken any more."""
        from fluvial.kafka.admin import cluster_errors

        content: dict[str, Any] = {"key": record.key, "value": record.value, **self._place}
        if record.timestamp_ms is not None:
            content["timestamp"] = record.timestamp_ms
        if record.headers:
            content["headers"] = list(record.headers)
        deadline = time.monotonic() + DELIVERY_SECONDS
        while True:
            self._look()
            try:
                with cluster_errors(f"write to {self._topic!r}"):
                    self._producer.produce(self._topic, **content)
                self._producer.poll(0)
                return
            except BufferError:
                self._producer.poll(_POLL_SECONDS)
                assert time.monotonic() < deadline + DELIVERY_SECONDS, "a queued record is delivered or fails in time"

    def finish(self) -> None:
        """Wait until every record is acknowledged; raises ClusterError when one was refused."""
        while self._producer.flush(_POLL_SECONDS):
            self._look()
        self._look()

    def _look(self) -> None:
        from confluent_kafka import KafkaError

        from fluvial.kafka.admin import ClusterError, reason

        if self._refused is None:
            self._tell()
            return
        self._producer.purge()
        self._producer.flush(_POLL_SECONDS)
        kept = f"{self.written} records were written"
        if self._refused.code() == KafkaError._MSG_TIMED_OUT:
            why = self._refusals.reason
            raise ClusterError(
                f"the cluster took no record for {self._topic!r} within {DELIVERY_SECONDS:.0f} s; {kept}; "
                + (why or "check that the leader of its partitions is up and has disk space")
            )
        why = self._reason() or reason(Exception(self._refused))
        raise ClusterError(f"the cluster refused a record for {self._topic!r}: {why}; {kept}")

    def _reason(self) -> str | None:
        """What the broker says of the record that it does not take, which the client keeps to itself."""
        if not self._invalid:
            return None
        from fluvial.cluster.refusal import why_refused

        partition = self._invalid[0].partition()
        found = self._metadata.topics[self._topic].partitions.get(partition)
        leader = None if found is None else self._metadata.brokers.get(found.leader)
        if leader is None:
            return None
        batch = [(each.key(), each.value()) for each in self._invalid if each.partition() == partition]
        return why_refused(self._cluster, f"{leader.host}:{leader.port}", self._topic, partition, batch)

    def _tell(self) -> None:
        """Say once that records are refused, and why, while there is hope."""
        refusals = self._refusals
        if refusals.reason is not None and not self._told and time.monotonic() - refusals.since >= TELL_SECONDS:
            self._told = True
            terminal.say(
                f"the cluster refuses records for {self._topic!r}: {refusals.reason}; "
                f"trying on for up to {DELIVERY_SECONDS:.0f} s"
            )

    def _on_delivery(self, error: Any, record: "Message") -> None:
        if error is None:
            self.written += 1
            self._refusals.over()
        else:
            # After a fatal error every queued record fails with it; the first failure is the cause.
            self._refused = self._refused or error
            if error.name() == "INVALID_RECORD":
                self._invalid.append(record)
