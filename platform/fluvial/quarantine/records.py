"""Records in quarantine, as their headers tell of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluent_kafka import Message

SUFFIX = ".quarantine"
PREFIX = "fluvial.quarantine."

Header = tuple[str, bytes | None]


def quarantine_of(topic: str) -> str:
    """The topic in which the bad records of a topic are."""
    return topic if topic.endswith(SUFFIX) else topic + SUFFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """
    One record in quarantine.

    `partition` and `offset` are where it would have been in `topic`, `place` is its (partition, offset) in quarantine;
    `part` is what was bad, `key` or `value`, and `field` the path of the field where it went wrong, if it did in one.
    """

    topic: str
    partition: int
    offset: int
    place: tuple[int, int]
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Sequence[Header]
    reason: str
    part: str
    field: str
    producer: Mapping[str, str]

    @property
    def position(self) -> str:
        """Where it would have been, for people."""
        return f"{self.topic}-{self.partition}@{self.offset}"


def quarantined(message: "Message") -> Quarantined:
    """Read a record of a quarantine; what its headers do not tell is empty, its place taken for where it was."""
    found: dict[str, str] = {}
    own: list[Header] = []
    for name, content in message.headers() or ():
        if name.startswith(PREFIX):
            found[name.removeprefix(PREFIX)] = (content or b"").decode(errors="replace")
        else:
            own.append((name, content))
    partition, offset = message.partition() or 0, message.offset() or 0
    return Quarantined(
        topic=found.get("topic", (message.topic() or "").removesuffix(SUFFIX)),
        partition=_number(found.get("partition"), partition),
        offset=_number(found.get("offset"), offset),
        place=(partition, offset),
        key=message.key(),
        value=message.value(),
        timestamp_ms=message.timestamp()[1],
        headers=own,
        reason=found.get("reason", ""),
        part=found.get("part", ""),
        field=found.get("field", ""),
        producer={
            name: found[name] for name in ("producer.id", "producer.epoch", "producer.sequence") if name in found
        },
    )


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text is not None and text.isdigit() else otherwise
