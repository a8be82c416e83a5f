"""What a validation found, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The verdict on one expectation."""

    expectation: str
    """The kind, as Great Expectations names it: `expect_column_values_to_be_unique`."""
    arguments: Mapping[str, Any]
    passed: bool
    critical: bool
    checked: int | None
    """How many values were looked at; None when the expectation is about the table as a whole."""
    unexpected: int | None
    observed: Any
    sample: tuple[Mapping[str, Any], ...]
    """Some of the failing rows: the offending columns and where the row stands in the log."""
    failing: tuple[Mapping[str, Any], ...] = ()
    """As `sample`, and up to a thousand of them."""
    error: str | None
    """Why the expectation could not be evaluated (a column that is not there, say); such a finding has not passed."""

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={value}" for name, value in self.arguments.items())
        return f"{self.expectation.removeprefix('expect_').replace('_', ' ')} ({arguments})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The findings of one suite on one set of rows."""

    rows: int
    seconds: float
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether every expectation holds."""
        return all(finding.passed for finding in self.findings)

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The expectations that do not hold."""
        return tuple(finding for finding in self.findings if not finding.passed)

    @property
    def critical(self) -> bool:
        """Whether an expectation that does not hold was declared critical."""
        return any(finding.critical for finding in self.failed)
