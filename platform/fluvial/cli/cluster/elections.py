"""`fluvial cluster elect`: elect the preferred replicas of partitions."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluvial.cli import completion, terminal
from fluvial.cli.options import AnswerFormat, Form, with_cluster
from fluvial.config import Settings

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from fluvial.cli.topic.partitions import TopicPartition


@with_cluster
def elect_leaders(
    *,
    settings: Settings,
    tps: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC[:PARTITION,…]]…",
            help="Topics, or some of their partitions (default: all).",
            show_default=False,
            autocompletion=completion.topics,
        ),
    ] = None,
    unclean: Annotated[
        bool,
        typer.Option("--unclean", help="Let a replica lead that lacks records, where no other is left: they are lost."),
    ] = False,
    answer_format: AnswerFormat = Form.TABLE,
) -> None:
    """
    Elect the preferred replica of each partition, for example after a broker restarted.

    A partition whose preferred replica already leads is skipped; with a single replica that is always so.
    """
    from confluent_kafka import KafkaError

    from fluvial.cli.topic.partitions import partitions_of
    from fluvial.kafka.admin import ClusterError, admin_of, describe_cluster

    admin = admin_of(settings.cluster)
    cluster = describe_cluster(settings, admin)
    wanted = partitions_of(tps or cluster.topics, cluster)
    results = have_elected(admin, wanted, unclean=unclean)
    outcomes = {tp: _outcome(results.get(tp), KafkaError.ELECTION_NOT_NEEDED) for tp in wanted}
    rows = [{"topic": tp[0], "partition": tp[1], "outcome": outcome} for tp, outcome in sorted(outcomes.items())]
    if answer_format is Form.JSON:
        terminal.answer(json.dumps(rows))
    else:
        terminal.table(
            ("topic", "partition", "outcome"), (row.values() for row in rows if row["outcome"] != _NOT_NEEDED)
        )
    counts = Counter(outcomes.values())
    elected, not_needed = counts.pop(_ELECTED, 0), counts.pop(_NOT_NEEDED, 0)
    terminal.say(f"{elected} leaders elected; {not_needed} of {len(wanted)} partitions had the right one already")
    if counts:
        raise ClusterError(f"{counts.total()} of {len(wanted)} partitions have no other leader: {next(iter(counts))}")


def have_elected(
    admin: "AdminClient", tps: Iterable["TopicPartition"], *, unclean: bool = False
) -> dict["TopicPartition", Any]:
    """Have leaders elected; return the error of each partition, None where there is a new one. Raises ClusterError."""
    from confluent_kafka import ElectionType, TopicPartition

    from fluvial.kafka.admin import cluster_errors

    wanted = [TopicPartition(*tp) for tp in tps]
    if not wanted:
        return {}
    kind = ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED
    with cluster_errors("elect leaders"):
        # confluent-kafka 2.16 does not take the request's timeout that it documents: SystemError.
        asked = admin.elect_leaders(kind, wanted).result()
    return {(tp.topic, tp.partition): error for tp, error in asked.items()}


_ELECTED = "elected"
_NOT_NEEDED = "not needed"


def _outcome(error: object, not_needed: int) -> str:
    if error is None:
        return _ELECTED
    return _NOT_NEEDED if error.code() == not_needed else str(error.str())  # type: ignore[attr-defined]
