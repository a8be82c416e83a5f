"""What is measured, and how it is said."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a run is told."""

    quick: bool = False
    peer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure."""

    what: str
    value: float
    unit: str
