"""
What a run did, in numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """
    The result of materializing one table.

    `rows` counts the rows that the commit wrote or deleted, `quarantined` the records that were quarantined instead.
    `offsets` has the range [start, end) read of each partition, `inputs` the version of each table that a pipeline
    read. `version_before` is None for a table that the run created. `bytes` is what the commit added to the
    table's files, `lag_before` the table's lag in offsets when the run started. `late_rows` counts the rows of the
    pipeline's table of late rows, None where no input has a watermark.
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
    lag_before: int | None = None
    late_rows: int | None = None
    seconds: float = 0.0

    @property
    def records_max(self) -> int:
        """
        The number of offsets that were read; fewer records where the log has holes.
        """
        return sum(end - start for start, end in self.offsets.values())
