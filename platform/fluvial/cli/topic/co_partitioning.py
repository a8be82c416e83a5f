"""What the project in the working folder says about a topic's number of partitions."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fluvial.cli import terminal
from fluvial.config import Settings

if TYPE_CHECKING:
    from fluvial.tables.declare.co_partitioning import CoPartitioningError


def problems(settings: Settings, topic: str, count: int, topics: Mapping[str, Any]) -> "list[CoPartitioningError]":
    """
    Return what would be wrong with `count` partitions of `topic` beside the `topics` that there are.

    None without a project; a project that cannot be imported causes a warning only.
    """
    from fluvial.tables import DeclarationError
    from fluvial.tables.declare.co_partitioning import check_topic
    from fluvial.tables.declare.project import NoProjectError, load_project

    try:
        declared = load_project(settings.project)
    except NoProjectError:
        return []
    except DeclarationError as error:
        terminal.say(f"whether {topic} must be co-partitioned with others is not known: {error}")
        return []
    partitions = {name: len(each.partitions) for name, each in topics.items()}
    return list(check_topic(topic, count, partitions, declared))


def refusal(topic: str, problem: "CoPartitioningError") -> str:
    """Return why a topic is not created with this count, and how to create it."""
    peers = {name: count for name, count in problem.partitions.items() if name != topic}
    having = " and ".join(f"{name}, which has {count} partitions" for name, count in sorted(peers.items()))
    return (
        f"topic {topic!r} is not created with {problem.partitions[topic]} partitions: "
        f'pipeline("{problem.pipeline}") declares it co-partitioned with {having}: create it with '
        f"--partitions {min(peers.values())}, or leave co_partitioned out of the declaration"
    )
