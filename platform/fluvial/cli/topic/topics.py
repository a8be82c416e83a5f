"""`fluvial topic`: create, list, describe and delete topics."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluvial.cli import completion, terminal
from fluvial.cli.cluster.cluster_doctor import warn_of_topic
from fluvial.cli.options import Json, pairs, with_cluster
from fluvial.cli.topic import co_partitioning
from fluvial.cluster.profiles import PROFILES
from fluvial.config import Settings

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

app = typer.Typer(help="Create, list, describe, change and delete topics.", no_args_is_help=True, rich_markup_mode=None)

Topic = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help="Name of the topic.", show_default=False, autocompletion=completion.topics),
]
Topics = Annotated[
    list[str],
    typer.Argument(metavar="TOPIC…", help="Names of the topics.", show_default=False, autocompletion=completion.topics),
]
NewTopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", show_default=False)]


@app.command(epilog="Example:  fluvial topic create orders --partitions 6 --config retention.ms=-1")
@with_cluster
def create(
    *,
    settings: Settings,
    topic: NewTopicName,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, help="How many partitions.")] = 1,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor", "-r", min=1, help="How many replicas (default: the cluster's).", show_default=False
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config", "-c", metavar="KEY=VALUE", help="A topic setting; may be given again.", show_default=False
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="|".join(PROFILES),
            help="Replicas and settings for durability or for availability; explicit options override them.",
            show_default=False,
        ),
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Do nothing if the topic exists.")] = False,
) -> None:
    """Create a topic."""
    from confluent_kafka.admin import NewTopic

    from fluvial.kafka.admin import TIMEOUT_SECONDS, ClusterError, admin_of, cluster_errors, describe_cluster

    wanted = pairs("--config", config)
    if profile is not None:
        if profile not in PROFILES:
            raise typer.BadParameter(f"--profile {profile!r}: there are {' and '.join(PROFILES)}")
        wanted = {**PROFILES[profile].settings, **wanted}
        replication_factor = replication_factor or PROFILES[profile].replication_factor
    admin = admin_of(settings.cluster)
    topics = describe_cluster(settings, admin).topics
    if topic in topics:
        if not if_not_exists:
            raise ClusterError(f"topic {topic!r} exists already; choose another name, or add --if-not-exists")
        terminal.say(f"topic {topic} already exists")
        return
    for problem in co_partitioning.problems(settings, topic, partitions, topics):
        raise ClusterError(co_partitioning.refusal(topic, problem))
    new = NewTopic(topic, partitions, -1 if replication_factor is None else replication_factor, config=wanted)
    with cluster_errors(f"create topic {topic!r}"):
        _created(admin, new, TIMEOUT_SECONDS)
    terminal.say(f"topic {topic} created with {partitions} partition{'s' if partitions > 1 else ''}")
    warn_of_topic(settings.cluster, topic)


def _created(admin: "AdminClient", new: Any, timeout_seconds: float) -> None:
    for future in admin.create_topics(
        [new], operation_timeout=timeout_seconds, request_timeout=timeout_seconds
    ).values():
        future.result()


@app.command("list", epilog="Example:  fluvial topic list --json")
@with_cluster
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Also internal topics.")] = False,
    as_json: Json = False,
    *,
    settings: Settings,
) -> None:
    """List the topics."""
    from fluvial.kafka.admin import admin_of, describe_cluster

    found = describe_cluster(settings, admin_of(settings.cluster)).topics
    names = [name for name in sorted(found) if internal or not name.startswith("_")]
    if as_json:
        terminal.answer(json.dumps([{"topic": name, "partitions": len(found[name].partitions)} for name in names]))
        return
    for name in names:
        terminal.answer(name)


@app.command(epilog="Example:  fluvial topic describe orders")
@with_cluster
def describe(topic: Topic, as_json: Json = False, *, settings: Settings) -> None:
    """Show a topic's partitions, their offsets and the settings that are not the default."""
    from fluvial.kafka.admin import admin_of, cluster_errors, describe_cluster, require_topic

    admin = admin_of(settings.cluster)
    metadata = require_topic(describe_cluster(settings, admin), topic)
    with cluster_errors(f"describe topic {topic!r}"):
        ends = _offsets(admin, topic, sorted(metadata.partitions))
        config = _overrides(admin, topic)
    partitions = [
        {
            "partition": number,
            "leader": each.leader,
            "replicas": list(each.replicas),
            "isr": list(each.isrs),
            "start_offset": ends[number][0],
            "end_offset": ends[number][1],
        }
        for number, each in sorted(metadata.partitions.items())
    ]
    if as_json:
        terminal.answer(json.dumps({"topic": topic, "config": config, "partitions": partitions}, indent=2))
        return
    _draw(topic, partitions, config)


def _draw(topic: str, partitions: list[dict[str, Any]], config: dict[str, str]) -> None:
    from rich.table import Table

    records = sum(each["end_offset"] - each["start_offset"] for each in partitions)
    terminal.answer(f"{topic}: {len(partitions)} partitions, {records} offsets held")
    for name, value in sorted(config.items()):
        terminal.answer(f"  {name} = {value}")
    table = Table("partition", "leader", "replicas", "in sync", "start offset", "end offset")
    for each in partitions:
        replicas, isr = (" ".join(map(str, each[name])) for name in ("replicas", "isr"))
        table.add_row(
            str(each["partition"]),
            str(each["leader"]),
            replicas,
            isr,
            str(each["start_offset"]),
            str(each["end_offset"]),
        )
    terminal.stdout().print(table)


def _offsets(admin: "AdminClient", topic: str, partitions: list[int]) -> dict[int, tuple[int, int]]:
    """Return the first and the next offset of each partition."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec

    from fluvial.kafka.admin import TIMEOUT_SECONDS

    found = []
    for spec in (OffsetSpec.earliest(), OffsetSpec.latest()):
        asked = admin.list_offsets(
            {TopicPartition(topic, number): spec for number in partitions}, request_timeout=TIMEOUT_SECONDS
        )
        found.append({tp.partition: future.result().offset for tp, future in asked.items()})
    return {number: (found[0][number], found[1][number]) for number in partitions}


def _overrides(admin: "AdminClient", topic: str) -> dict[str, str]:
    """Return the settings that were set on the topic itself."""
    from confluent_kafka.admin import ConfigResource, ConfigSource, ResourceType

    from fluvial.kafka.admin import TIMEOUT_SECONDS

    asked = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)], request_timeout=TIMEOUT_SECONDS)
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {
        name: entry.value
        for future in asked.values()
        for name, entry in future.result().items()
        if entry.source == own and entry.value is not None
    }


@app.command(epilog="Example:  fluvial topic delete orders")
@with_cluster
def delete(topics: Topics, *, settings: Settings) -> None:
    """Delete topics with all their records; nothing is deleted when one of them is unknown."""
    from fluvial.kafka.admin import TIMEOUT_SECONDS, admin_of, cluster_errors, describe_cluster, require_topic

    admin = admin_of(settings.cluster)
    cluster = describe_cluster(settings, admin)
    for topic in topics:
        require_topic(cluster, topic)
    asked = admin.delete_topics(list(topics), operation_timeout=TIMEOUT_SECONDS, request_timeout=TIMEOUT_SECONDS)
    for topic, future in asked.items():
        with cluster_errors(f"delete topic {topic!r}"):
            future.result()
        terminal.say(f"topic {topic} deleted")
