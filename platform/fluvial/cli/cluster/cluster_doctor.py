"""`fluvial cluster doctor`: what loses data or stops work in the next outage."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fluvial.cli import terminal
from fluvial.cli.cluster.doctor_rehearsal import is_bad, rehearsed, row_of, show
from fluvial.cli.options import AnswerFormat, Form, with_cluster
from fluvial.config import Settings

if TYPE_CHECKING:
    from fluvial.cluster.doctor import Facts, TopicFacts
    from fluvial.cluster.picture import Picture
    from fluvial.cluster.wire import ClusterLink
    from fluvial.kafka import KafkaCluster

TOPIC, BROKER = 2, 4


@with_cluster
def doctor(
    *,
    settings: Settings,
    client: Annotated[
        list[Path] | None,
        typer.Option(
            "--client",
            metavar="FILE",
            help="Settings of a producer or consumer, a line `name=value` each; may be given again.",
            show_default=False,
        ),
    ] = None,
    rehearse: Annotated[
        bool,
        typer.Option(
            "--rehearse",
            help="Also play faults on a copy of the cluster in processes of this machine, with the same replicas and "
            "settings of topics: a broker or the controller killed, a broker cut off, a disk full, a disk lost.",
        ),
    ] = False,
    try_passwords: Annotated[
        bool,
        typer.Option(
            "--try-passwords",
            help="Also sign in as each user with its name and other passwords that are tried first; the brokers tell "
            "of it in their logs.",
        ),
    ] = False,
    answer_format: AnswerFormat = Form.TABLE,
) -> None:
    """
    Report what loses data or stops work in the next outage, lets in who should not, or contradicts each other.

    Checks the settings of the brokers, every topic, and the clients whose files are given, together; releases, disks
    and clocks of the nodes; whether a topic deletes records before tables on this machine read them; listeners, rights,
    certificates, and the modes of files on this machine. The status is 1 if something loses data or lets others in.

    With `--rehearse` it is also 1 if a fault loses records, or if topics do not keep what their settings claim. That
    takes some minutes, and nothing is done to the cluster itself.
    """
    from fluvial.cli.cluster.security_facts import security_facts
    from fluvial.cluster.doctor import Severity, examine, in_order
    from fluvial.cluster.picture import picture_of
    from fluvial.cluster.security_doctor import examine_security
    from fluvial.cluster.wire import ClusterLink

    clients = {str(path): _read(path) for path in client or ()}
    with ClusterLink(settings.cluster) as cluster:
        picture = picture_of(cluster)
        facts = facts_of(settings, cluster, picture, clients)
        exposure = security_facts(settings, cluster, picture, try_passwords=try_passwords)
    findings = in_order([*examine(facts), *examine_security(exposure)])
    outcomes = rehearsed(facts) if rehearse else []
    if answer_format is Form.JSON:
        rows = [{"severity": each.severity.value, **_fields(each)} for each in findings]
        shown = {"findings": rows, "rehearsal": [row_of(each) for each in outcomes]} if rehearse else rows
        terminal.answer(json.dumps(shown, indent=2))
    elif findings:
        columns = ("severity", "about", "what", "better")
        terminal.table(columns, ((each.severity.value, each.about, each.text, each.repair) for each in findings))
    else:
        terminal.answer("nothing found")
    if outcomes and answer_format is not Form.JSON:
        show(outcomes)
    is_grave = any(each.severity in {Severity.LOSES, Severity.EXPOSES} for each in findings)
    if is_grave or any(map(is_bad, outcomes)):
        raise typer.Exit(1)


def facts_of(
    settings: Settings, cluster: "ClusterLink", picture: "Picture", clients: dict[str, dict[str, str]]
) -> "Facts":
    """Read from a cluster, its registry and the warehouse what the rules check; raises WireError."""
    from collections import Counter

    from fluvial.cli.cluster.doctor_facts import clock_facts, disk_facts, table_facts, version_facts
    from fluvial.cli.cluster.doctor_loads import load_facts
    from fluvial.cluster.doctor import Facts

    topics = topic_facts(cluster, picture)
    brokers = [str(broker) for broker in picture.brokers]
    supported, level = version_facts(cluster)
    return Facts(
        brokers=len(brokers),
        topics=topics,
        broker_settings=_settings(cluster, BROKER, brokers[:1]).get(brokers[0], {}) if brokers else {},
        replicas_by_broker=Counter(node for each in picture.partitions.values() for node in each.replicas),
        clients=clients,
        tables=table_facts(settings, {topic.name: topic for topic in topics}),
        loads=load_facts(settings, cluster, picture, topics),
        disks=disk_facts(cluster, picture),
        clocks=clock_facts(settings),
        supported=supported,
        level=level,
    )


def topic_facts(cluster: "ClusterLink", picture: "Picture", only: str | None = None) -> "tuple[TopicFacts, ...]":
    """Return the topics that users created, or the given one."""
    from fluvial.cluster.doctor import TopicFacts

    fewest: dict[str, int] = {}
    partitions: dict[str, int] = {}
    for each in picture.partitions.values():
        name = each.tp.topic
        if name.startswith("_") or each.is_internal or only not in {None, name}:
            continue
        partitions[name] = partitions.get(name, 0) + 1
        fewest[name] = min(fewest.get(name, len(each.replicas)), len(picture.replicas_of(each.tp)))
    held = _settings(cluster, TOPIC, sorted(fewest))
    return tuple(
        TopicFacts(name=name, replicas=count, partitions=partitions[name], settings=held.get(name, {}))
        for name, count in fewest.items()
    )


def warn_of_topic(kafka: "KafkaCluster", topic: str) -> None:
    """Print warnings about one topic after it was created or changed."""
    from collections import Counter

    from fluvial.cluster.doctor import Facts, Severity, examine
    from fluvial.cluster.picture import picture_of
    from fluvial.cluster.wire import ClusterLink
    from fluvial.errors import FluvialError

    try:
        with ClusterLink(kafka) as cluster:
            picture = picture_of(cluster)
            (facts,) = topic_facts(cluster, picture, topic)
    except (FluvialError, ValueError):
        return  # what was asked for is done; nobody can tell more now
    held = Counter(node for each in picture.partitions.values() for node in each.replicas)
    for each in examine(Facts(brokers=len(picture.brokers), topics=(facts,), replicas_by_broker=held)):
        if each.severity is not Severity.NOTE:
            terminal.say(f"warning ({each.severity.value}): {each.about} {each.text}; better: {each.repair}")


def _settings(cluster: "ClusterLink", kind: int, names: list[str]) -> dict[str, dict[str, str]]:
    from log_broker.wire.apis import ApiKey

    wanted = tuple({"resource_type": kind, "resource_name": name, "configuration_keys": None} for name in names)
    if not wanted:
        return {}
    asked = {"resources": wanted, "include_synonyms": False, "include_documentation": False}
    answer = cluster.ask(ApiKey.DESCRIBE_CONFIGS, asked)
    return {
        result.resource_name: {each.name: each.value for each in result.configs if each.value is not None}
        for result in answer.results
    }


def _read(path: Path) -> dict[str, str]:
    from fluvial.cluster.doctor import client_settings
    from fluvial.kafka.admin import ClusterError

    try:
        return client_settings(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no text"
        raise ClusterError(f"--client {path}: {reason}") from error


def _fields(finding: object) -> dict[str, str]:
    return {name: getattr(finding, name) for name in ("rule", "about", "text", "repair")}
