"""What became of a table in a catalog."""

from enum import StrEnum


class Outcome(StrEnum):
    """How a catalog has come to know a table."""

    MADE = "registered"
    CHANGED = "updated"
    SAME = "up to date"
