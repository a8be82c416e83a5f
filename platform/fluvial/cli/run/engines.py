"""The engines of `fluvial sql` as its option names them; those of `fluvial.query` are imported on first use."""

from enum import StrEnum


class EngineName(StrEnum):
    """Who answers a statement."""

    AUTO = "auto"
    SAIL = "sail"
    SPARK = "spark"
