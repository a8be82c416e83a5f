"""`fluvial group`: list, describe, reset and delete consumer groups."""

import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from difflib import get_close_matches
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from fluvial.cli import completion, terminal
from fluvial.cli.group.group_reset import planned, target_of
from fluvial.cli.options import AnswerFormat, Form, with_cluster
from fluvial.config import Settings

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ConsumerGroupDescription

    from fluvial.cli.topic.partitions import TopicPartition

app = typer.Typer(help="List, describe, reset and delete consumer groups.", no_args_is_help=True, rich_markup_mode=None)

T = TypeVar("T")
_RETRY_SECONDS = 0.2

Group = Annotated[
    str,
    typer.Argument(metavar="GROUP", help="Name of the group.", show_default=False, autocompletion=completion.groups),
]
Groups = Annotated[
    list[str],
    typer.Argument(metavar="GROUP…", help="Names of the groups.", show_default=False, autocompletion=completion.groups),
]


class State(StrEnum):
    """The states that groups are listed by."""

    EMPTY = "empty"
    STABLE = "stable"
    REBALANCING = "rebalancing"


_STATES = {
    State.EMPTY: {"EMPTY"},
    State.STABLE: {"STABLE"},
    State.REBALANCING: {"PREPARING_REBALANCING", "COMPLETING_REBALANCING"},
}


@app.command("list", epilog="Example:  fluvial group list --state empty --format json")
@with_cluster
def list_groups(
    state: Annotated[
        State | None, typer.Option("--state", help="Only groups in this state.", show_default=False)
    ] = None,
    answer_format: AnswerFormat = Form.TABLE,
    *,
    settings: Settings,
) -> None:
    """List the consumer groups with their state and type."""
    from fluvial.kafka.admin import admin_of, describe_cluster

    admin = admin_of(settings.cluster)
    describe_cluster(settings, admin)
    found = [
        {"group": each.group_id, "state": _word(each.state), "type": _word(each.type)}
        for each in sorted(_listed(admin), key=lambda each: each.group_id)
        if state is None or each.state.name in _STATES[state]
    ]
    if answer_format is Form.JSON:
        terminal.answer(json.dumps(found))
        return
    terminal.table(("group", "state", "type"), ((each["group"], each["state"], each["type"]) for each in found))


@app.command(epilog="Example:  fluvial group describe settlement")
@with_cluster
def describe(group: Group, answer_format: AnswerFormat = Form.TABLE, *, settings: Settings) -> None:
    """Show a group's members, their assignments, and the lag of each partition."""
    from fluvial.kafka.admin import admin_of, describe_cluster

    admin = admin_of(settings.cluster)
    describe_cluster(settings, admin)
    found = _report(admin, _described(admin, group))
    if answer_format is Form.JSON:
        terminal.answer(json.dumps(found, indent=2))
        return
    _draw(found)


@app.command(epilog="Example:  fluvial group lag settlement --watch --interval 5")
@with_cluster
def lag(
    group: Group,
    watch: Annotated[bool, typer.Option("--watch", help="Print it again and again, until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, help="Seconds between two answers of --watch.")
    ] = 2.0,
    answer_format: AnswerFormat = Form.TABLE,
    *,
    settings: Settings,
) -> None:
    """
    Show a group's lag: the offsets of each partition that it has not committed yet, and their sum.

    With --watch, each answer has its time; in JSON it is one line.
    """
    from fluvial.kafka.admin import admin_of, describe_cluster

    admin = admin_of(settings.cluster)
    describe_cluster(settings, admin)
    try:
        while True:
            found = _report(admin, _described(admin, group))
            kept = {name: found[name] for name in ("group", "state", "lag", "partitions")}
            now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
            if answer_format is Form.JSON:
                terminal.answer(json.dumps({"time": now} | kept))
            else:
                terminal.answer(f"{f'{now}  ' if watch else ''}{group}: {found['state']}, lag {found['lag']}")
                terminal.table(
                    ("topic", "partition", "committed offset", "end offset", "lag"),
                    ([_dash(value) for value in list(each.values())[:5]] for each in found["partitions"]),
                )
            sys.stdout.flush()
            if not watch:
                return
            time.sleep(interval)
    except KeyboardInterrupt:
        return


@app.command(epilog="Example:  fluvial group reset settlement --topic orders --to-earliest --execute")
@with_cluster
def reset(
    *,
    settings: Settings,
    group: Group,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:PARTITION,…]",
            help="What to reset; may be given again.",
            show_default=False,
            autocompletion=completion.topics,
        ),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Reset every partition that the group has committed.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the earliest offset.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the latest offset: only new records.")] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", min=0, help="To this offset.", show_default=False)
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option(
            "--shift-by", metavar="N", help="By so many offsets, forward or (-N) backward.", show_default=False
        ),
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime", metavar="TIME", help="To the first record since then (ISO 8601).", show_default=False
        ),
    ] = None,
    by_duration: Annotated[
        str | None,
        typer.Option(
            "--by-duration", metavar="1d2h3m4s", help="To the first record of the last so long.", show_default=False
        ),
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Do it; without this it is only shown.")] = False,
    answer_format: AnswerFormat = Form.TABLE,
) -> None:
    """
    Reset a group's committed offsets.

    Shows what would change; --execute changes it. Rejected while the group has members, which would overwrite it. An
    offset outside the log is moved to the nearest one inside.
    """
    target = target_of(
        to_earliest=to_earliest,
        to_latest=to_latest,
        to_offset=to_offset,
        shift_by=shift_by,
        to_datetime=to_datetime,
        by_duration=by_duration,
    )
    if bool(topic) == all_topics:
        raise typer.BadParameter("choose what to reset: --topic TOPIC[:PARTITION,…], or --all-topics")
    from fluvial.kafka.admin import admin_of, describe_cluster

    admin = admin_of(settings.cluster)
    cluster = describe_cluster(settings, admin)
    committed = _reset_start(admin, group, must_be_there=all_topics or target.shift is not None)
    tps = sorted(committed) if all_topics else _partitions(topic, cluster)
    changes = planned(admin, target, tps, committed)
    if execute:
        _commit(admin, group, {(each["topic"], each["partition"]): each["new_offset"] for each in changes})
    if answer_format is Form.JSON:
        terminal.answer(json.dumps({"group": group, "executed": execute, "partitions": changes}, indent=2))
    else:
        rows = (
            (each["topic"], each["partition"], _dash(each["committed_offset"]), each["new_offset"]) for each in changes
        )
        terminal.table(("topic", "partition", "committed offset", "new offset"), rows)
    terminal.say(
        f"group {group} continues from these offsets" if execute else "nothing was changed; add --execute to do it"
    )


@app.command(epilog="Example:  fluvial group delete settlement")
@with_cluster
def delete(groups: Groups, *, settings: Settings) -> None:
    """Delete groups with all their offsets; nothing is deleted when one is unknown or has members."""
    from fluvial.kafka.admin import TIMEOUT_SECONDS, admin_of, cluster_errors, describe_cluster

    admin = admin_of(settings.cluster)
    describe_cluster(settings, admin)
    for group in groups:
        _refuse_members(_described(admin, group), "deleted")
    for group, future in admin.delete_consumer_groups(list(groups), request_timeout=TIMEOUT_SECONDS).items():
        with cluster_errors(f"delete group {group!r}"):
            future.result()
        terminal.say(f"group {group} deleted")


def _partitions(words: list[str] | None, cluster: Any) -> "list[TopicPartition]":
    from fluvial.cli.topic.partitions import partitions_of

    return partitions_of(words or (), cluster)


def _listed(admin: "AdminClient") -> list[Any]:
    from fluvial.kafka.admin import TIMEOUT_SECONDS, ClusterError, cluster_errors, reason

    with cluster_errors("list the groups"):
        found = admin.list_consumer_groups(request_timeout=TIMEOUT_SECONDS).result()
    if found.errors:
        raise ClusterError(f"cannot list the groups: {reason(found.errors[0])}")
    return list(found.valid)


def _described(admin: "AdminClient", group: str) -> "ConsumerGroupDescription":
    """Return a group's description; raises ClusterError with the nearest names when there is no such group."""
    from fluvial.kafka.admin import TIMEOUT_SECONDS, ClusterError, cluster_errors

    known = [each.group_id for each in _listed(admin)]
    if group not in known:
        near = get_close_matches(group, known, n=3)
        repair = f"did you mean {' or '.join(near)}?" if near else "`fluvial group list` shows the existing groups"
        raise ClusterError(f"no group {group!r} in the cluster; {repair}")
    with cluster_errors(f"describe group {group!r}"):
        return admin.describe_consumer_groups([group], request_timeout=TIMEOUT_SECONDS)[group].result()


def _reset_start(admin: "AdminClient", group: str, *, must_be_there: bool) -> "dict[TopicPartition, int]":
    """Return the group's committed offsets; raises ClusterError if it has members, or does not exist but must."""
    if must_be_there or group in {each.group_id for each in _listed(admin)}:
        _refuse_members(_described(admin, group), "reset")
        return _committed(admin, group)
    return {}


def _refuse_members(described: "ConsumerGroupDescription", what: str) -> None:
    from fluvial.kafka.admin import ClusterError

    members = described.members
    if members:
        who = ", ".join(sorted({f"{member.client_id} on {member.host.lstrip('/')}" for member in members}))
        raise ClusterError(
            f"group {described.group_id!r} has {_counted(len(members))} ({who}) "
            f"and cannot be {what} meanwhile; stop them first"
        )


def _committed(admin: "AdminClient", group: str) -> "dict[TopicPartition, int]":
    from confluent_kafka import ConsumerGroupTopicPartitions

    from fluvial.kafka.admin import TIMEOUT_SECONDS, cluster_errors

    def ask() -> Any:
        wanted = [ConsumerGroupTopicPartitions(group)]
        asked = admin.list_consumer_group_offsets(wanted, request_timeout=TIMEOUT_SECONDS)
        return asked[group].result().topic_partitions

    with cluster_errors(f"read the offsets of group {group!r}"):
        return {(tp.topic, tp.partition): tp.offset for tp in _patiently(ask) if tp.offset >= 0}


def _commit(admin: "AdminClient", group: str, offsets: "dict[TopicPartition, int]") -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

    from fluvial.kafka.admin import TIMEOUT_SECONDS, cluster_errors

    def ask() -> None:
        wanted = [TopicPartition(*tp, offset) for tp, offset in offsets.items()]
        asked = admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, wanted)], request_timeout=TIMEOUT_SECONDS
        )
        for tp in asked[group].result().topic_partitions:
            if tp.error is not None:
                raise KafkaException(tp.error)

    with cluster_errors(f"reset group {group!r}"):
        _patiently(ask)


def _patiently(ask: Callable[[], T]) -> T:
    """Ask again while the group's coordinator comes up, which takes a new cluster a moment; raises KafkaException."""
    from confluent_kafka import KafkaError, KafkaException

    from fluvial.kafka.admin import TIMEOUT_SECONDS

    coming_up = (
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    )
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in coming_up or time.monotonic() >= deadline:
                raise
            time.sleep(_RETRY_SECONDS)


def _report(admin: "AdminClient", described: "ConsumerGroupDescription") -> dict[str, Any]:
    """Put together what `describe` prints as JSON; a partition that has no committed offset has no lag either."""
    from fluvial.cli.topic.partitions import bounds_of

    committed = _committed(admin, described.group_id)
    owners = {
        (tp.topic, tp.partition): member.member_id
        for member in described.members
        for tp in member.assignment.topic_partitions
    }
    ends = {tp: end for tp, (_, end) in bounds_of(admin, sorted(committed.keys() | owners.keys())).items()}
    partitions = [
        {
            "topic": tp[0],
            "partition": tp[1],
            "committed_offset": committed.get(tp),
            "end_offset": end,
            "lag": max(0, end - committed[tp]) if tp in committed else None,
            "member_id": owners.get(tp),
        }
        for tp, end in ends.items()
    ]
    return {
        "group": described.group_id,
        "state": _word(described.state),
        "type": _word(described.type),
        "assignor": described.partition_assignor,
        "coordinator": described.coordinator.id,
        "lag": sum(each["lag"] or 0 for each in partitions),
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "host": member.host.lstrip("/"),
                "partitions": [
                    {"topic": tp.topic, "partition": tp.partition} for tp in member.assignment.topic_partitions
                ],
            }
            for member in described.members
        ],
        "partitions": partitions,
    }


def _draw(found: dict[str, Any]) -> None:
    members = found["members"]
    assignor = f", assignor {found['assignor']}" if found["assignor"] else ""
    terminal.answer(
        f"{found['group']}: {found['state']}, {found['type']}, {_counted(len(members))}, lag {found['lag']}"
        f"{assignor}, coordinator {found['coordinator']}"
    )
    names = {each["member_id"]: f"{each['client_id']} on {each['host']}" for each in members}
    terminal.table(
        ("topic", "partition", "committed offset", "end offset", "lag", "member"),
        (
            (
                each["topic"],
                each["partition"],
                _dash(each["committed_offset"]),
                each["end_offset"],
                _dash(each["lag"]),
                names.get(each["member_id"], "-"),
            )
            for each in found["partitions"]
        ),
    )
    for each in members:
        if not each["partitions"]:
            terminal.answer(f"{names[each['member_id']]} reads no partition")


def _counted(members: int) -> str:
    return f"{members} member{'' if members == 1 else 's'}"


def _dash(value: Any) -> Any:
    return "-" if value is None else value


def _word(value: Any) -> str:
    """Return an enum's member as a word to read: PREPARING_REBALANCING is `preparing rebalancing`."""
    return str(value.name).lower().replace("_", " ")
