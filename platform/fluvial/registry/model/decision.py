"""What a command comes to."""

from dataclasses import dataclass
from typing import Any

from fluvial.registry.model.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """`reply` holds once `records` are in the log, all of them."""

    records: tuple[Record, ...]
    reply: Any
