"""Partitions as the command line names them, and their offsets as the cluster tells them."""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import typer

from fluvial.kafka.admin import TIMEOUT_SECONDS, ClusterError, cluster_errors, require_topic

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata

TopicPartition = tuple[str, int]
"""Topic and partition."""

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def partitions_of(words: Iterable[str], cluster: "ClusterMetadata") -> list[TopicPartition]:
    """Read `TOPIC` and `TOPIC:PARTITION,PARTITION`; raises a usage error, or ClusterError for what is not there."""
    tps: dict[TopicPartition, None] = {}
    for word in words:
        topic, colon, listed = word.partition(":")
        known = require_topic(cluster, topic).partitions
        numbers = listed.split(",") if colon else list(map(str, sorted(known)))
        for number in numbers:
            if not number.strip().isdecimal():
                raise typer.BadParameter(f"{word!r}: write TOPIC or TOPIC:PARTITION[,PARTITION…]")
            if int(number) not in known:
                raise ClusterError(f"topic {topic!r} has no partition {int(number)}; it has {len(known)}, from 0 on")
            tps[topic, int(number)] = None
    return list(tps)


def offsets_of(admin: "AdminClient", tps: Iterable[TopicPartition], spec: Any) -> dict[TopicPartition, int]:
    """Return what the cluster says for an OffsetSpec; -1 where no record is so young. Raises ClusterError."""
    from confluent_kafka import TopicPartition

    asked = admin.list_offsets({TopicPartition(*tp): spec for tp in tps}, request_timeout=TIMEOUT_SECONDS)
    with cluster_errors("ask for offsets"):
        return {(tp.topic, tp.partition): future.result().offset for tp, future in asked.items()}


def bounds_of(admin: "AdminClient", tps: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
    """Return the start offset and the end offset. Raises ClusterError."""
    from confluent_kafka.admin import OffsetSpec

    tps = list(tps)
    first = offsets_of(admin, tps, OffsetSpec.earliest())
    end = offsets_of(admin, tps, OffsetSpec.latest())
    return {tp: (first[tp], end[tp]) for tp in tps}


def time_offsets_of(
    admin: "AdminClient", tps: Iterable[TopicPartition], when: datetime
) -> Mapping[TopicPartition, int]:
    """Return the first offset of a record that is not older than `when`, -1 where there is none."""
    from confluent_kafka.admin import OffsetSpec

    return offsets_of(admin, tps, OffsetSpec.for_timestamp(max(0, round(when.timestamp() * 1000))))


def instant(flag: str, text: str) -> datetime:
    """Read a time in ISO 8601; one without a zone is UTC."""
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        raise typer.BadParameter(f"{flag} {text!r}: write a time such as 2026-03-01T12:00:00Z") from None
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


def start_of(flag: str, text: str) -> datetime:
    """Read a time as `instant` does, or how long ago it is meant to be as `duration` does."""
    if _DURATION.fullmatch(text.strip()):
        return datetime.now(UTC) - duration(flag, text)
    return instant(flag, text)


def duration(flag: str, text: str) -> timedelta:
    """Read a duration such as 90s, 15m or 1d12h."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        raise typer.BadParameter(f"{flag} {text!r}: write a duration such as 90s, 15m or 1d12h")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
