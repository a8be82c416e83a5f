"""
What a run did, in numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """
    One table brought up to date, or found to be.

    `rows` counts the rows that the commit wrote or took away, `quarantined` the records that were put aside instead.
    `offsets` holds the [start, end) that was read of each partition, `inputs` the version of each table that a pipeline
    read. `version_before` is None for a table that the run made. `bytes` is what the commit added to the table's files,
    `behind` how many offsets the log held beyond the table when the run began.
    """

    table: str
    kind: str
    skipped: bool
    version_before: int | None
    version_after: int | None
    offsets: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    inputs: Mapping[str, int] = field(default_factory=dict)
    rows: int = 0
    quarantined: int = 0
    bytes: int = 0
    behind: int | None = None
    seconds: float = 0.0

    @property
    def records_max(self) -> int:
        """
        The number of offsets that were read; fewer records where the log has holes.
        """
        return sum(end - start for start, end in self.offsets.values())
