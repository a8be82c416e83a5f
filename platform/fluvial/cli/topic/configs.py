"""`fluvial cluster config`: settings of topics and brokers, with where each comes from."""

import json
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluvial.cli import completion, terminal
from fluvial.cli.cluster.cluster_doctor import warn_of_topic
from fluvial.cli.options import AnswerFormat, Form, pairs, with_cluster
from fluvial.config import Settings

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

# What decides which acknowledged records an outage may take.
SAFETY = frozenset({"min.insync.replicas", "unclean.leader.election.enable", "fluvial.durability"})

app = typer.Typer(help="Show and change settings of topics and brokers.", no_args_is_help=True, rich_markup_mode=None)

Topic = Annotated[
    str | None,
    typer.Option("--topic", "-t", help="Settings of this topic.", show_default=False, autocompletion=completion.topics),
]
Broker = Annotated[
    int | None, typer.Option("--broker", "-b", min=0, help="Settings of the broker of this id.", show_default=False)
]
Keys = Annotated[list[str], typer.Argument(metavar="KEY…", help="Names of settings.", show_default=False)]
OptionalKeys = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY]…", help="Only these settings, whatever they are.", show_default=False),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Holder:
    """What has the settings: a topic, or a broker by its id."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"topic {self.name!r}" if self.kind == "TOPIC" else f"broker {self.name}"


@app.command(epilog="Example:  fluvial cluster config get --topic orders retention.ms cleanup.policy")
@with_cluster
def get(
    *,
    settings: Settings,
    keys: OptionalKeys = None,
    topic: Topic = None,
    broker: Broker = None,
    every: Annotated[bool, typer.Option("--all", "-a", help="Also the settings that are at their default.")] = False,
    answer_format: AnswerFormat = Form.TABLE,
) -> None:
    """
    Show the settings that hold for a topic or a broker, and where each comes from.

    Without KEY those that somebody has set, with --all every one.
    """
    from fluvial.kafka.admin import ClusterError

    holder = _holder(topic, broker)
    admin = _admin(settings, holder)
    entries = _entries(admin, holder)
    for key in keys or ():
        if key not in entries:
            raise ClusterError(f"{holder} has no setting {key!r}; {_repair(key, entries)}")
    shown: list[dict[str, Any]] = [
        {
            "name": name,
            "value": None if entry.is_sensitive else entry.value,
            "source": _source(entry.source),
            "default": _default(entry),
        }
        for name, entry in sorted(entries.items())
        if (name in keys if keys else every or not _is_default(entry))
    ]
    if answer_format is Form.JSON:
        terminal.answer(json.dumps(shown, indent=2))
        return
    if not shown:
        terminal.say(f"every setting of {holder} is at its default; --all shows them")
    terminal.table(
        ("name", "value", "source", "default"),
        ((each["name"], each["value"], each["source"].lower(), _dash(each["default"])) for each in shown),
    )


@app.command(
    "set", epilog="Example:  fluvial cluster config set --topic orders retention.ms=86400000 cleanup.policy=delete"
)
@with_cluster
def set_(
    *,
    settings: Settings,
    values: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE…", help="Settings and their values.", show_default=False)
    ],
    topic: Topic = None,
    broker: Broker = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only validate the change.")] = False,
) -> None:
    """Set the given settings; others do not change. If one of them is invalid, none is set."""
    from confluent_kafka.admin import AlterConfigOpType

    holder = _holder(topic, broker)
    wanted = pairs("KEY=VALUE", values)
    admin = _admin(settings, holder)
    _alter(admin, holder, {name: (AlterConfigOpType.SET, value) for name, value in wanted.items()}, dry_run=dry_run)
    for name, value in wanted.items():
        terminal.say(f"{holder}: {name} {'could be set to' if dry_run else '='} {value}")
    if topic is not None and not dry_run and wanted.keys() & SAFETY:
        warn_of_topic(settings.cluster, topic)


@app.command(epilog="Example:  fluvial cluster config delete --topic orders retention.ms")
@with_cluster
def delete(
    *,
    settings: Settings,
    keys: Keys,
    topic: Topic = None,
    broker: Broker = None,
) -> None:
    """Reset settings to their defaults."""
    from confluent_kafka.admin import AlterConfigOpType

    holder = _holder(topic, broker)
    admin = _admin(settings, holder)
    _alter(admin, holder, dict.fromkeys(keys, (AlterConfigOpType.DELETE, None)), dry_run=False)
    for name in keys:
        terminal.say(f"{holder}: {name} is at its default again")


def _holder(topic: str | None, broker: int | None) -> _Holder:
    if (topic is None) == (broker is None):
        raise typer.BadParameter("choose whose settings: --topic NAME or --broker ID")
    return _Holder(kind="BROKER", name=str(broker)) if topic is None else _Holder(kind="TOPIC", name=topic)


def _admin(settings: Settings, holder: _Holder) -> "AdminClient":
    """Return a client of a cluster that has such a topic or broker; raises ClusterError."""
    from fluvial.kafka.admin import ClusterError, admin_of, describe_cluster, require_topic

    admin = admin_of(settings.cluster)
    cluster = describe_cluster(settings, admin)
    if holder.kind == "TOPIC":
        require_topic(cluster, holder.name)
    elif int(holder.name) not in cluster.brokers:
        there = ", ".join(map(str, sorted(cluster.brokers)))
        raise ClusterError(f"no broker {holder.name} is up in the cluster; there are {there}")
    return admin


def _entries(admin: "AdminClient", holder: _Holder) -> dict[str, Any]:
    from confluent_kafka.admin import ConfigResource, ResourceType

    from fluvial.kafka.admin import TIMEOUT_SECONDS, cluster_errors

    resource = ConfigResource(ResourceType[holder.kind], holder.name)
    with cluster_errors(f"read the settings of {holder}"):
        found: dict[str, Any] = admin.describe_configs([resource], request_timeout=TIMEOUT_SECONDS)[resource].result()
    return found


def _alter(admin: "AdminClient", holder: _Holder, changes: dict[str, tuple[Any, str | None]], *, dry_run: bool) -> None:
    from confluent_kafka.admin import ConfigEntry, ConfigResource, ResourceType

    from fluvial.kafka.admin import TIMEOUT_SECONDS, cluster_errors

    entries = [
        ConfigEntry(name, value, incremental_operation=operation) for name, (operation, value) in changes.items()
    ]
    resource = ConfigResource(ResourceType[holder.kind], holder.name, incremental_configs=entries)
    with cluster_errors(f"change the settings of {holder}"):
        asked = admin.incremental_alter_configs([resource], request_timeout=TIMEOUT_SECONDS, validate_only=dry_run)
        asked[resource].result()


def _is_default(entry: Any) -> bool:
    return _source(entry.source) == "DEFAULT_CONFIG"


def _source(number: Any) -> str:
    """Return Kafka's name of where a value comes from."""
    from confluent_kafka.admin import ConfigSource

    return str(ConfigSource(number).name)


def _default(entry: Any) -> str | None:
    """Return what would hold if nobody had set anything, where the cluster says so."""
    values = [each.value for each in entry.synonyms.values() if _is_default(each)]
    return values[0] if values else None


def _repair(key: str, known: Any) -> str:
    near = get_close_matches(key, list(known), n=3)
    return f"did you mean {' or '.join(near)}?" if near else "--all shows all settings"


def _dash(value: str | None) -> str:
    return "-" if value is None else value
