"""What `fluvial cluster doctor --rehearse` shows: each fault, and what the topics' shapes made of it."""

from typing import TYPE_CHECKING

from fluvial.cli import terminal

if TYPE_CHECKING:
    from fluvial.cluster.doctor import Facts
    from fluvial.rehearsal.plan import Outcome, Shape

_TOPICS_SHOWN = 3


def rehearsed(facts: "Facts") -> "list[Outcome]":
    """Play every fault on a copy of the cluster, telling how far it is; raises FluvialError."""
    from fluvial.rehearsal.plan import shapes_of
    from fluvial.rehearsal.rehearse import rehearse

    shapes = shapes_of(facts.topics, facts.clients)
    return list(rehearse(shapes, brokers=facts.brokers, settings=facts.broker_settings, say=terminal.say))


def show(outcomes: "list[Outcome]") -> None:
    """Write the table of outcomes, and what was not rehearsed."""
    columns = ("fault", "topics", "settings", "verdict", "what happened")
    terminal.table(
        columns,
        (
            (each.fault.value, _topics(each.shape), settings_of(each.shape), each.verdict.value, each.text)
            for each in outcomes
        ),
    )
    terminal.say(
        "not rehearsed: a power cut of all brokers, a network that loses or delays, and faults of the clients' own; "
        "the copy's nodes are fluvial's, whatever the cluster's are"
    )


def row_of(outcome: "Outcome") -> dict[str, object]:
    """An outcome for `--format json`."""
    return {
        "fault": outcome.fault.value,
        "topics": list(outcome.shape.topics),
        "replicas": outcome.shape.replicas,
        "min.insync.replicas": outcome.shape.min_isr,
        "acks": outcome.shape.producer.get("acks", "all"),
        "verdict": outcome.verdict.value,
        "acknowledged": outcome.acknowledged,
        "lost": outcome.lost,
        "paused_seconds": None if outcome.paused_seconds is None else round(outcome.paused_seconds, 3),
    }


def is_bad(outcome: "Outcome") -> bool:
    """Whether records were lost, or a claim was broken."""
    from fluvial.rehearsal.plan import Verdict

    return outcome.verdict in {Verdict.LOST, Verdict.BROKE_ITS_CLAIM}


def settings_of(shape: "Shape") -> str:
    """What a shape is, in a few words."""
    copies = "1 copy" if shape.replicas == 1 else f"{shape.replicas} copies"
    return f"{copies}, min.insync.replicas={shape.min_isr}, acks={shape.producer.get('acks', 'all')}"


def _topics(shape: "Shape") -> str:
    shown = ", ".join(shape.topics[:_TOPICS_SHOWN])
    more = len(shape.topics) - _TOPICS_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
