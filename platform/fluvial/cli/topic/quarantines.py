"""`fluvial topic quarantine`: records that broke their contract, shown, repaired and put back."""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluvial.cli import terminal
from fluvial.cli.options import AnswerFormat, Form, pairs, with_cluster, with_cluster_and_registry, with_json
from fluvial.config import Settings

if TYPE_CHECKING:
    from fluvial.quarantine.records import Quarantined
    from fluvial.quarantine.repair import Repair, RepairError, Seen

REASONS_SHOWN_MAX = 3
SHOWN_MAX = 20

app = typer.Typer(
    help="Show, repair and replay records that violated their topic's contract.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic whose quarantine is meant.", show_default=False)]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Give a field (a.b for one within another) this value, JSON or text; may be given again.",
        show_default=False,
    ),
]
File = Annotated[
    Path | None,
    typer.Option(
        "--file",
        help="JSON lines with partition, offset and the repaired value, as `show --format json` prints them.",
        show_default=False,
    ),
]
Call = Annotated[
    str | None,
    typer.Option(
        "--call",
        metavar="MODULE:FUNCTION",
        help="Python that gets each record as a dict and returns its value, or None to drop it.",
        show_default=False,
    ),
]


@app.command("list", epilog="Example:  fluvial topic quarantine list")
@with_cluster
@with_json
def list_quarantines(answer_format: AnswerFormat = Form.TABLE, *, settings: Settings) -> None:
    """List the quarantines: the number of records in each, how many are not replayed yet, and their reasons."""
    from fluvial.kafka.admin import admin_of, cluster_errors, describe_cluster
    from fluvial.quarantine.records import SUFFIX

    topics = describe_cluster(settings, admin_of(settings.cluster)).topics
    rows = []
    for name in sorted(each for each in topics if each.endswith(SUFFIX)):
        with cluster_errors(f"read {name!r}"):
            rows.append(_summary(settings, name.removesuffix(SUFFIX), len(topics[name].partitions)))
    if answer_format is Form.JSON:
        terminal.answer(json.dumps(rows))
        return
    if not rows:
        terminal.say("there is no quarantine")
    terminal.table(
        ("topic", "records", "waiting", "reasons"),
        [(row["topic"], row["records"], row["waiting"], _reasons(row["reasons"])) for row in rows],
    )


def _summary(settings: "Settings", topic: str, partitions: int) -> dict[str, Any]:
    from fluvial.quarantine.reading import reader_of, records_from, replayed_to
    from fluvial.quarantine.records import quarantine_of

    consumer = reader_of(settings, topic)
    try:
        replayed = replayed_to(consumer, quarantine_of(topic), partitions)
        reasons: Counter[str] = Counter()
        count = waiting = 0
        for record in records_from(consumer, quarantine_of(topic), dict.fromkeys(range(partitions), 0)):
            count += 1
            if record.place[1] >= replayed[record.place[0]]:
                waiting += 1
                reasons[record.reason] += 1
    finally:
        consumer.close()
    return {"topic": topic, "records": count, "waiting": waiting, "reasons": dict(reasons.most_common())}


def _reasons(reasons: dict[str, int]) -> str:
    shown = [f"{count}: {reason}" for reason, count in list(reasons.items())[:REASONS_SHOWN_MAX]]
    return "\n".join([*shown, f"… and {len(reasons) - len(shown)} more"] if len(reasons) > len(shown) else shown)


@app.command(epilog="Example:  fluvial topic quarantine show orders --max-records 5")
@with_cluster_and_registry
@with_json
def show(
    topic: Topic,
    *,
    settings: Settings,
    max_records: Annotated[
        int, typer.Option("--max-records", "-n", min=1, help="Show so many records at most.")
    ] = SHOWN_MAX,
    everything: Annotated[bool, typer.Option("--all", help="Also what has been replayed already.")] = False,
    answer_format: AnswerFormat = Form.TABLE,
) -> None:
    """
    Show the records in a topic's quarantine, with the reason and as much of their values as can be read.

    With --format json one object per line; repair the value and pass it to `fluvial topic quarantine replay --file`.
    """
    from fluvial.kafka.admin import cluster_errors
    from fluvial.quarantine.reading import reader_of, records_from, replayed_to
    from fluvial.quarantine.records import quarantine_of
    from fluvial.quarantine.repair import Reader

    topic, partitions = _quarantine_of(settings, topic)
    shown = 0
    consumer = reader_of(settings, topic)
    try:
        with settings.registry.client() as registry, cluster_errors(f"read the quarantine of {topic!r}"):
            reader = Reader(registry)
            starts = replayed_to(consumer, quarantine_of(topic), partitions)
            if everything:
                starts = dict.fromkeys(starts, 0)
            for record in records_from(consumer, quarantine_of(topic), starts):
                seen = reader.read(record)
                as_json = answer_format is Form.JSON
                terminal.answer(json.dumps(_row(seen), ensure_ascii=False) if as_json else _lines(seen))
                shown += 1
                if shown == max_records:
                    break
    finally:
        consumer.close()
    if not shown:
        terminal.say("no quarantined records")


def _quarantine_of(settings: "Settings", topic: str) -> tuple[str, int]:
    from fluvial.kafka.admin import admin_of, describe_cluster, require_topic
    from fluvial.quarantine.records import SUFFIX, quarantine_of

    cluster = describe_cluster(settings, admin_of(settings.cluster))
    if quarantine_of(topic) not in cluster.topics:
        require_topic(cluster, topic)
        terminal.say(f"{topic} has no quarantine: none of its records was quarantined")
        raise typer.Exit(0)
    return topic.removesuffix(SUFFIX), len(cluster.topics[quarantine_of(topic)].partitions)


def _row(seen: "Seen") -> dict[str, Any]:
    record = seen.record
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": None if record.key is None else record.key.decode(errors="backslashreplace"),
        "reason": record.reason,
        "part": record.part,
        "field": record.field,
        "schema_id": seen.schema_id,
        "value": seen.value,
        **{name.replace(".", "_"): int(text) for name, text in record.producer.items()},
    }


def _lines(seen: "Seen") -> str:
    record = seen.record
    key = "" if record.key is None else f"  key {record.key.decode(errors='backslashreplace')}"
    at = f"\n  at field {record.field}" if record.field else ""
    value = json.dumps(seen.value, ensure_ascii=False)
    what = "value" if seen.is_whole else "what can be read"
    return f"{record.position}{key}\n  {record.reason}{at}\n  {what}: {value}"


@app.command(epilog="Example:  fluvial topic quarantine replay orders --set currency=EUR --dry-run")
@with_cluster_and_registry
def replay(
    topic: Topic,
    *,
    settings: Settings,
    assignments: Assignments = None,
    file: File = None,
    call: Call = None,
    leave_out: Annotated[
        bool, typer.Option("--leave-out", help="Skip records that cannot be repaired, permanently.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be appended.")] = False,
) -> None:
    """
    Append the repaired records of a topic's quarantine to the topic, each one once even if this is run repeatedly.

    Without a repair option, only records that decode by now are replayed, as after a schema was registered. Key,
    timestamp, partition and order are preserved; the header `fluvial.replayed.from` has the original position. Records
    that a table's run put aside are replayed by `fluvial table replay`.
    """
    from fluvial.kafka.admin import cluster_errors
    from fluvial.quarantine.repair import Repairing
    from fluvial.quarantine.replay import replay as replay_all

    repair = repair_of(assignments, file, call)
    topic, partitions = _quarantine_of(settings, topic)
    with settings.registry.client() as registry, cluster_errors(f"replay the quarantine of {topic!r}"):
        done = replay_all(
            settings,
            topic,
            partitions,
            Repairing(registry, repair),
            leave_out=leave_out,
            dry_run=dry_run,
            say=said if dry_run else complained,
        )
    would = "would be " if dry_run else ""
    terminal.answer(
        f"{done.appended:,} records {would}appended to {topic}, {done.dropped:,} dropped, {done.left_out:,} left out"
    )


def repair_of(assignments: list[str] | None, file: Path | None, call: str | None) -> "Repair | None":
    """The way of repairing that was asked for, None for none; a usage error for more than one."""
    from fluvial.quarantine import repair as repairing

    ways = [each for each in (assignments, file, call) if each]
    if len(ways) > 1:
        raise typer.BadParameter("--set, --file and --call are three ways of repairing: give one of them")
    if assignments:
        return repairing.settings(pairs("--set", assignments))
    if file is not None:
        return repairing.lines(file)
    return None if call is None else repairing.function(call)


def said(was: "Quarantined", now: "Quarantined | None", error: "RepairError | None") -> None:
    """Print what becomes of a record."""
    if error is None:
        what = "dropped" if now is None else "as it is" if now.value == was.value else "repaired"
        terminal.answer(f"{was.position}: {what}")
    else:
        terminal.answer(f"{error}")


def complained(was: "Quarantined", now: "Quarantined | None", error: "RepairError | None") -> None:
    """Tell of a record that is left out."""
    if error is not None:
        terminal.say(f"left out: {error}")
