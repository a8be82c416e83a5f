"""`fluvial topic`: create, list, describe and delete topics."""

import json
from collections.abc import Collection
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluvial.cli import completion, terminal
from fluvial.cli.options import AnswerFormat, Form, pairs, with_cluster, with_json
from fluvial.cli.topic import co_partitioning
from fluvial.cluster.profiles import PROFILES
from fluvial.config import Settings

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

Topic = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help="Name of the topic.", show_default=False, autocompletion=completion.topics),
]
Topics = Annotated[
    list[str],
    typer.Argument(metavar="TOPIC…", help="Names of the topics.", show_default=False, autocompletion=completion.topics),
]
NewTopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", show_default=False)]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command(epilog="Example:  fluvial topic create orders --partitions 6 --config retention.ms=-1")(create)
    app.command("list", epilog="Example:  fluvial topic list --format names")(list_topics)
    app.command(epilog="Example:  fluvial topic describe orders")(describe)
    app.command(epilog="Example:  fluvial topic delete orders")(delete)


@with_cluster
def create(
    *,
    settings: Settings,
    topic: NewTopicName,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", "-p", min=1, help="How many partitions (default: the cluster's).", show_default=False
        ),
    ] = None,
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

    from fluvial.cli.cluster.cluster_doctor import warn_of_topic
    from fluvial.kafka.admin import TIMEOUT_SECONDS, ClusterError, admin_of, cluster_errors, describe_cluster

    wanted = pairs("--config", config)
    if profile is not None:
        if profile not in PROFILES:
            raise typer.BadParameter(f"--profile {profile!r}: there are {' and '.join(PROFILES)}")
        wanted = {**PROFILES[profile].settings, **wanted}
        replication_factor = replication_factor or PROFILES[profile].replication_factor
    admin = admin_of(settings.cluster)
    cluster = describe_cluster(settings, admin)
    topics = cluster.topics
    if topic in topics:
        if not if_not_exists:
            raise ClusterError(f"topic {topic!r} exists already; choose another name, or add --if-not-exists")
        terminal.say(f"topic {topic} already exists")
        return
    count = _usual_partitions(admin, cluster.brokers) if partitions is None else partitions
    for problem in co_partitioning.problems(settings, topic, count, topics):
        raise ClusterError(co_partitioning.refusal(topic, problem))
    new = NewTopic(topic, count, -1 if replication_factor is None else replication_factor, config=wanted)
    with cluster_errors(f"create topic {topic!r}"):
        _created(admin, new, TIMEOUT_SECONDS)
    terminal.say(f"topic {topic} created with {count} partition{'s' if count > 1 else ''}")
    warn_of_topic(settings.cluster, topic)


def _usual_partitions(admin: "AdminClient", brokers: Collection[int]) -> int:
    """`num.partitions` of a broker; 1 where none says it, or not to this user."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource, ResourceType

    from fluvial.kafka.admin import TIMEOUT_SECONDS

    if not brokers:
        return 1
    asked = ConfigResource(ResourceType.BROKER, str(min(brokers)))
    try:
        found = admin.describe_configs([asked], request_timeout=TIMEOUT_SECONDS)[asked].result()
    except KafkaException:
        return 1
    said = found.get("num.partitions")
    return 1 if said is None or said.value is None else int(said.value)


def _created(admin: "AdminClient", new: Any, timeout_seconds: float) -> None:
    for future in admin.create_topics(
        [new], operation_timeout=timeout_seconds, request_timeout=timeout_seconds
    ).values():
        future.result()


class ListForm(StrEnum):
    """How topics are listed."""

    TABLE = "table"
    JSON = "json"
    NAMES = "names"


@with_cluster
@with_json
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Also internal topics.")] = False,
    answer_format: Annotated[
        ListForm, typer.Option("--format", help="Print a table, JSON for programs, or names alone, one a line.")
    ] = ListForm.TABLE,
    *,
    settings: Settings,
) -> None:
    """
    List the topics with their partitions, replicas, records and cleanup policy.

    "Offsets held" is the number of offsets from the start to the end of all partitions: of a compacted topic more than
    there are records, and unknown (-) while a partition has no leader.
    """
    from fluvial.kafka.admin import admin_of, describe_cluster

    admin = admin_of(settings.cluster)
    found = describe_cluster(settings, admin).topics
    names = [name for name in sorted(found) if internal or not name.startswith("_")]
    if answer_format is ListForm.NAMES:
        for name in names:
            terminal.answer(name)
        return
    rows = _listed(admin, {name: found[name].partitions for name in names})
    if answer_format is ListForm.JSON:
        terminal.answer(json.dumps(rows))
        return
    terminal.table(
        ("topic", "partitions", "replication factor", "offsets held", "cleanup policy"),
        (["-" if value is None else value for value in row.values()] for row in rows),
    )


def _listed(admin: "AdminClient", topics: dict[str, Any]) -> list[dict[str, Any]]:
    from fluvial.cli.topic.partitions import bounds_of

    led = [(name, number) for name in topics for number, each in topics[name].items() if each.leader >= 0]
    held = {tp: end - start for tp, (start, end) in bounds_of(admin, led).items()} if led else {}
    policies = _cleanup_policies(admin, list(topics))
    return [
        {
            "topic": name,
            "partitions": len(partitions),
            "replication_factor": max((len(each.replicas) for each in partitions.values()), default=0),
            "offsets_held": sum(held[name, number] for number in partitions)
            if all((name, number) in held for number in partitions)
            else None,
            "cleanup_policy": policies.get(name),
        }
        for name, partitions in topics.items()
    ]


def _cleanup_policies(admin: "AdminClient", topics: list[str]) -> dict[str, str]:
    """Return the cleanup policy of each topic whose settings may be read."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource, ResourceType

    from fluvial.kafka.admin import TIMEOUT_SECONDS

    if not topics:
        return {}
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    found = {}
    for resource, future in admin.describe_configs(resources, request_timeout=TIMEOUT_SECONDS).items():
        try:
            found[resource.name] = future.result()["cleanup.policy"].value
        except KafkaException:
            # Listing topics needs no permission to describe their settings.
            continue
    return found


@with_cluster
@with_json
def describe(topic: Topic, answer_format: AnswerFormat = Form.TABLE, *, settings: Settings) -> None:
    """Show a topic's partitions, their offsets and the settings that are not the default."""
    from fluvial.cli.topic.partitions import bounds_of
    from fluvial.kafka.admin import admin_of, cluster_errors, describe_cluster, require_topic

    admin = admin_of(settings.cluster)
    metadata = require_topic(describe_cluster(settings, admin), topic)
    with cluster_errors(f"describe topic {topic!r}"):
        config = _overrides(admin, topic)
    bounds = bounds_of(admin, [(topic, number) for number in metadata.partitions])
    partitions = [
        {
            "partition": number,
            "leader": each.leader,
            "replicas": list(each.replicas),
            "isr": list(each.isrs),
            "start_offset": bounds[topic, number][0],
            "end_offset": bounds[topic, number][1],
        }
        for number, each in sorted(metadata.partitions.items())
    ]
    if answer_format is Form.JSON:
        terminal.answer(json.dumps({"topic": topic, "config": config, "partitions": partitions}, indent=2))
        return
    _draw(topic, partitions, config)


def _draw(topic: str, partitions: list[dict[str, Any]], config: dict[str, str]) -> None:
    records = sum(each["end_offset"] - each["start_offset"] for each in partitions)
    terminal.answer(f"{topic}: {len(partitions)} partitions, {records} offsets held")
    for name, value in sorted(config.items()):
        terminal.answer(f"  {name} = {value}")
    terminal.table(
        ("partition", "leader", "replicas", "in sync", "start offset", "end offset"),
        (
            (
                each["partition"],
                each["leader"],
                " ".join(map(str, each["replicas"])),
                " ".join(map(str, each["isr"])),
                each["start_offset"],
                each["end_offset"],
            )
            for each in partitions
        ),
    )


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
