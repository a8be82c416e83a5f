"""`fluvial topic alter`, `delete-records` and `offsets`."""

import json
from enum import StrEnum
from typing import Annotated, Any

import typer

from fluvial.cli import completion, terminal
from fluvial.cli.options import AnswerFormat, Form, pairs, with_cluster
from fluvial.cli.topic import co_partitioning
from fluvial.config import Settings

Topic = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help="Name of the topic.", show_default=False, autocompletion=completion.topics),
]
Partitions = Annotated[
    list[str],
    typer.Argument(
        metavar="TOPIC[:PARTITION,…]…",
        help="Topics, or some of their partitions.",
        show_default=False,
        autocompletion=completion.topics,
    ),
]


class At(StrEnum):
    """Offsets that have a name."""

    EARLIEST = "earliest"
    LATEST = "latest"
    MAX_TIMESTAMP = "max-timestamp"


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command(epilog="Example:  fluvial topic alter orders --partitions 12 --config retention.ms=-1")(alter)
    app.command("delete-records", epilog="Example:  fluvial topic delete-records orders:0 --before 1000 --execute")(
        delete_records
    )
    app.command(epilog="Example:  fluvial topic offsets orders --time 2026-03-01T00:00:00Z")(offsets)


@with_cluster
def alter(
    *,
    settings: Settings,
    topic: Topic,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="Grow to so many.", show_default=False)
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config", "-c", metavar="KEY=VALUE", help="A setting to set; may be given again.", show_default=False
        ),
    ] = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option(
            "--delete-config", metavar="KEY", help="A setting to take back; may be given again.", show_default=False
        ),
    ] = None,
) -> None:
    """
    Add partitions to a topic, or change its settings.

    Adding partitions moves some keys to other partitions. Tables preserve the order of a key if the new count is a
    multiple of the old one. Partitions cannot be removed.
    """
    from confluent_kafka.admin import NewPartitions

    from fluvial.kafka.admin import (
        TIMEOUT_SECONDS,
        ClusterError,
        admin_of,
        cluster_errors,
        describe_cluster,
        require_topic,
    )

    wanted = pairs("--config", config)
    if partitions is None and not wanted and not delete_config:
        raise typer.BadParameter("choose what to change: --partitions, --config or --delete-config")
    admin = admin_of(settings.cluster)
    cluster = describe_cluster(settings, admin)
    have = len(require_topic(cluster, topic).partitions)
    if partitions is not None and partitions < have:
        raise ClusterError(f"topic {topic!r} has {have} partitions and cannot have fewer; create another topic")
    if wanted or delete_config:
        _configure(admin, topic, wanted, delete_config or [])
    if partitions == have:
        terminal.say(f"topic {topic} had {have} partitions already")
    elif partitions is not None:
        grown = admin.create_partitions([NewPartitions(topic, partitions)], request_timeout=TIMEOUT_SECONDS)
        with cluster_errors(f"grow topic {topic!r}"):
            grown[topic].result()
        terminal.say(f"topic {topic} has {partitions} partitions")
        if partitions % have:
            terminal.say(
                f"{partitions} is no multiple of {have}, so keys move between partitions that were there: compacted "
                "tables and states of this topic that have no order= must be built again (fluvial run --rebuild)"
            )
        # Told and not refused: of topics that grow together one is the first.
        for problem in co_partitioning.problems(settings, topic, partitions, cluster.topics):
            terminal.say(str(problem))


def _configure(admin: Any, topic: str, wanted: dict[str, str], unwanted: list[str]) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    from fluvial.kafka.admin import TIMEOUT_SECONDS, cluster_errors

    entries = [ConfigEntry(name, text, incremental_operation=AlterConfigOpType.SET) for name, text in wanted.items()]
    entries += [ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE) for name in unwanted]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    with cluster_errors(f"change the settings of topic {topic!r}"):
        admin.incremental_alter_configs([resource], request_timeout=TIMEOUT_SECONDS)[resource].result()
    for name, text in wanted.items():
        terminal.say(f"topic {topic}: {name} = {text}")
    for name in unwanted:
        terminal.say(f"topic {topic}: {name} is at its default again")


@with_cluster
def delete_records(
    *,
    settings: Settings,
    tps: Partitions,
    before: Annotated[
        int | None,
        typer.Option("--before", metavar="OFFSET", min=0, help="Those before this offset.", show_default=False),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All existing records.")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Do it; without this it is only shown.")] = False,
    answer_format: AnswerFormat = Form.TABLE,
) -> None:
    """
    Delete the oldest records of partitions, for all readers and for good.

    Shows what would be deleted; --execute deletes it.
    """
    from fluvial.cli.topic.partitions import bounds_of, partitions_of
    from fluvial.kafka.admin import ClusterError, admin_of, describe_cluster

    if (before is None) != everything:
        raise typer.BadParameter("choose the records: --before OFFSET, or --all")
    admin = admin_of(settings.cluster)
    bounds = bounds_of(admin, partitions_of(tps, describe_cluster(settings, admin)))
    for (topic, partition), (_, end) in bounds.items():
        if before is not None and before > end:
            raise ClusterError(f"{topic}:{partition} ends at offset {end}, before {before}; nothing was deleted")
    firsts = {tp: max(first, end if before is None else before) for tp, (first, end) in bounds.items()}
    if execute:
        firsts = _delete(admin, firsts)
    gone = [
        {
            "topic": tp[0],
            "partition": tp[1],
            "start_offset": bounds[tp][0],
            "new_start_offset": first,
            "end_offset": bounds[tp][1],
        }
        for tp, first in firsts.items()
    ]
    if answer_format is Form.JSON:
        terminal.answer(json.dumps({"executed": execute, "partitions": gone}, indent=2))
    else:
        terminal.table(
            ("topic", "partition", "start offset", "new start offset", "end offset"), (each.values() for each in gone)
        )
    if not execute:
        terminal.say("nothing was deleted; add --execute to do it")


def _delete(admin: Any, firsts: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
    from confluent_kafka import TopicPartition

    from fluvial.kafka.admin import TIMEOUT_SECONDS, cluster_errors

    asked = admin.delete_records(
        [TopicPartition(*tp, first) for tp, first in firsts.items()], request_timeout=TIMEOUT_SECONDS
    )
    with cluster_errors("delete records"):
        return {(tp.topic, tp.partition): future.result().low_watermark for tp, future in asked.items()}


@with_cluster
def offsets(
    *,
    settings: Settings,
    tps: Partitions,
    at: Annotated[At | None, typer.Option("--at", help="The offset of this name.", show_default=False)] = None,
    time: Annotated[
        str | None,
        typer.Option("--time", metavar="TIME", help="The first record since then (ISO 8601).", show_default=False),
    ] = None,
    answer_format: AnswerFormat = Form.TABLE,
) -> None:
    """Show the start and end offsets of partitions, or the first offset at or after a time."""
    from confluent_kafka.admin import OffsetSpec

    from fluvial.cli.topic.partitions import bounds_of, instant, offsets_of, partitions_of, time_offsets_of
    from fluvial.kafka.admin import admin_of, describe_cluster

    if at is not None and time is not None:
        raise typer.BadParameter("--at and --time: give one of them")
    when = None if time is None else instant("--time", time)
    admin = admin_of(settings.cluster)
    wanted = partitions_of(tps, describe_cluster(settings, admin))
    if when is not None:
        found = {tp: {"offset": offset} for tp, offset in time_offsets_of(admin, wanted, when).items()}
    elif at is not None:
        spec = getattr(OffsetSpec, at.replace("-", "_"))()
        found = {tp: {"offset": offset} for tp, offset in offsets_of(admin, wanted, spec).items()}
    else:
        bounds = bounds_of(admin, wanted)
        found = {tp: {"start_offset": first, "end_offset": end} for tp, (first, end) in bounds.items()}
    # The protocol says -1 for "no such record".
    rows = [
        {
            "topic": tp[0],
            "partition": tp[1],
            **{name: None if value < 0 else value for name, value in values.items()},
        }
        for tp, values in found.items()
    ]
    if answer_format is Form.JSON:
        terminal.answer(json.dumps(rows))
        return
    columns = [name.replace("_", " ") for name in rows[0]]
    terminal.table(columns, (["-" if value is None else value for value in row.values()] for row in rows))
