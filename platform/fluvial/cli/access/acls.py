"""`fluvial acl`: who may do what with topics, groups, transactional ids and the cluster."""

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluvial.cli import completion, terminal
from fluvial.cli.options import AnswerFormat, Form, with_cluster
from fluvial.config import Settings

if TYPE_CHECKING:
    from confluent_kafka.admin import AclBinding, AclBindingFilter

app = typer.Typer(
    help="List, add and remove access control lists.",
    epilog="Example:  fluvial acl list --topic orders",
    no_args_is_help=True,
    rich_markup_mode=None,
)

CLUSTER_NAME = "kafka-cluster"


class Operation(StrEnum):
    """What an ACL may be about."""

    ALL = "all"
    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    DESCRIBE = "describe"
    CLUSTER_ACTION = "cluster-action"
    DESCRIBE_CONFIGS = "describe-configs"
    ALTER_CONFIGS = "alter-configs"
    IDEMPOTENT_WRITE = "idempotent-write"


Principal = Annotated[
    str, typer.Argument(metavar="PRINCIPAL", help="Who: User:NAME, or User:* for everybody.", show_default=False)
]
AnyPrincipal = Annotated[
    str | None, typer.Option("--principal", metavar="PRINCIPAL", help="Only ACLs of it.", show_default=False)
]
Topic = Annotated[
    str | None,
    typer.Option(
        "--topic", metavar="NAME", help="A topic, or * for all.", show_default=False, autocompletion=completion.topics
    ),
]
Group = Annotated[
    str | None,
    typer.Option(
        "--group", metavar="NAME", help="A group, or * for all.", show_default=False, autocompletion=completion.groups
    ),
]
TransactionalId = Annotated[
    str | None,
    typer.Option("--transactional-id", metavar="NAME", help="A transactional id, or * for all.", show_default=False),
]
OnCluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
Prefixed = Annotated[bool, typer.Option("--prefixed", help="All whose names begin with the given one.")]
Operations = Annotated[
    list[Operation] | None,
    typer.Option("--operation", help="What may be done; may be given again.", show_default=False),
]
Deny = Annotated[bool, typer.Option("--deny", help="Forbid it, which wins over all that allows it.")]
Host = Annotated[str | None, typer.Option("--host", metavar="ADDRESS", help="Only from here.", show_default=False)]


@app.command("list", epilog="Example:  fluvial acl list --topic orders")
@with_cluster
def list_acls(
    *,
    principal: AnyPrincipal = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: OnCluster = False,
    answer_format: AnswerFormat = Form.TABLE,
    settings: Settings,
) -> None:
    """List ACLs: all, or those that a topic, group or other resource falls under, prefixes and * included."""
    from fluvial.kafka.admin import TIMEOUT_SECONDS, admin_of, cluster_errors, describe_cluster

    admin = admin_of(settings.cluster)
    describe_cluster(settings, admin)
    wanted = _wanted(topic, group, transactional_id, cluster=cluster)
    filters = [_filter(kind, name, "MATCH", principal) for kind, name in wanted]
    found: dict[AclBinding, None] = {}
    for each in filters or [_filter("ANY", None, "ANY", principal)]:
        with cluster_errors("list the ACLs"):
            found.update(dict.fromkeys(admin.describe_acls(each, request_timeout=TIMEOUT_SECONDS).result()))
    rows = sorted(map(_shown, found), key=lambda row: tuple(row.values()))
    if answer_format is Form.JSON:
        terminal.answer(json.dumps(rows))
        return
    columns = ("resource", "name", "pattern", "principal", "host", "operation", "permission")
    terminal.table(columns, ([row[column] for column in columns] for row in rows))


@app.command(epilog="Example:  fluvial acl add User:ada --topic orders --operation read --group settlement")
@with_cluster
def add(
    principal: Principal,
    *,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: OnCluster = False,
    prefixed: Prefixed = False,
    operation: Operations = None,
    deny: Deny = False,
    host: Host = None,
    settings: Settings,
) -> None:
    """Allow, or with --deny forbid, operations on each resource that is named."""
    from fluvial.kafka.admin import TIMEOUT_SECONDS, admin_of, cluster_errors, describe_cluster

    wanted = _wanted(topic, group, transactional_id, cluster=cluster)
    if not wanted or not operation:
        raise typer.BadParameter("name what it is about, such as --topic orders, and an --operation")
    _check_principal(principal)
    bindings = [
        _binding(kind, name, principal, each, prefixed=prefixed and kind != "BROKER", deny=deny, host=host or "*")
        for kind, name in wanted
        for each in operation
    ]
    admin = admin_of(settings.cluster)
    describe_cluster(settings, admin)
    for binding, future in admin.create_acls(bindings, request_timeout=TIMEOUT_SECONDS).items():
        with cluster_errors(f"add the ACL {_text(binding)}"):
            future.result()
        terminal.say(f"added: {_text(binding)}")


@app.command(epilog="Example:  fluvial acl remove User:ada --topic orders")
@with_cluster
def remove(
    principal: Principal,
    *,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: OnCluster = False,
    prefixed: Prefixed = False,
    operation: Operations = None,
    deny: Deny = False,
    host: Host = None,
    settings: Settings,
) -> None:
    """Remove a principal's ACLs on each resource that is named: of all operations and hosts, or of those given."""
    from fluvial.kafka.admin import TIMEOUT_SECONDS, ClusterError, admin_of, cluster_errors, describe_cluster

    wanted = _wanted(topic, group, transactional_id, cluster=cluster)
    if not wanted:
        raise typer.BadParameter("name what they are about, such as --topic orders")
    operations: list[Operation] | list[None] = operation or [None]
    filters = [
        _filter(
            kind,
            name,
            "PREFIXED" if prefixed and kind != "BROKER" else "LITERAL",
            principal,
            operation=each,
            permission="DENY" if deny else "ANY",
            host=host,
        )
        for kind, name in wanted
        for each in operations
    ]
    admin = admin_of(settings.cluster)
    describe_cluster(settings, admin)
    removed: dict[AclBinding, None] = {}
    for future in admin.delete_acls(filters, request_timeout=TIMEOUT_SECONDS).values():
        with cluster_errors("remove ACLs"):
            removed.update(dict.fromkeys(future.result()))
    if not removed:
        raise ClusterError("no ACL is like that; `fluvial acl list` shows those that there are")
    for binding in removed:
        terminal.say(f"removed: {_text(binding)}")


def _wanted(
    topic: str | None, group: str | None, transactional_id: str | None, *, cluster: bool
) -> list[tuple[str, str]]:
    """Return the resources that are named, by confluent-kafka's names of their types."""
    named = {
        "TOPIC": topic,
        "GROUP": group,
        "TRANSACTIONAL_ID": transactional_id,
        "BROKER": CLUSTER_NAME if cluster else None,
    }
    return [(kind, name) for kind, name in named.items() if name is not None]


def _check_principal(principal: str) -> None:
    kind, _, name = principal.partition(":")
    if not kind or not name:
        raise typer.BadParameter(f"{principal!r} is no principal: write User:NAME")


def _binding(
    kind: str, name: str, principal: str, operation: Operation, *, prefixed: bool, deny: bool, host: str
) -> "AclBinding":
    from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

    return AclBinding(
        ResourceType[kind],
        name,
        ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL,
        principal,
        host,
        AclOperation[operation.name],
        AclPermissionType.DENY if deny else AclPermissionType.ALLOW,
    )


def _filter(
    kind: str,
    name: str | None,
    pattern: str,
    principal: str | None,
    *,
    operation: Operation | None = None,
    permission: str = "ANY",
    host: str | None = None,
) -> "AclBindingFilter":
    from confluent_kafka.admin import (
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    return AclBindingFilter(
        ResourceType[kind],
        name,
        ResourcePatternType[pattern],
        principal,
        host,
        AclOperation.ANY if operation is None else AclOperation[operation.name],
        AclPermissionType[permission],
    )


def _shown(binding: "AclBinding") -> dict[str, Any]:
    kind = binding.restype.name
    return {
        "resource": "cluster" if kind == "BROKER" else _word(kind),
        "name": binding.name,
        "pattern": _word(binding.resource_pattern_type.name),
        "principal": binding.principal,
        "host": binding.host,
        "operation": _word(binding.operation.name),
        "permission": _word(binding.permission_type.name),
    }


def _text(binding: "AclBinding") -> str:
    shown = _shown(binding)
    named = f"{shown['resource']} {shown['name']}{'*' if shown['pattern'] == 'prefixed' else ''}"
    verb = "may" if shown["permission"] == "allow" else "may not"
    where = "" if shown["host"] == "*" else f" from {shown['host']}"
    return f"{shown['principal']} {verb} {shown['operation']} {named}{where}"


def _word(name: str) -> str:
    return name.lower().replace("_", "-")
