"""What a caller hears of a run while it goes on, and what it gets at the end."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fluvial.errors import FluvialError


class Status(StrEnum):
    """How an asset came out of a run."""

    MATERIALIZED = "materialized"
    UNCHANGED = "nothing new"
    """The run found nothing new and made no commit."""
    FAILED = "failed"
    HELD_BACK = "held back"
    """Not run: something it reads failed, or a blocking check of it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetStarted:
    """An asset's step has begun."""

    table: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetProgress:
    """An asset says in a line what it does now."""

    table: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetWarned:
    """An asset says in a line what somebody should know."""

    table: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetFinished:
    """An asset's step has ended."""

    table: str
    status: Status
    metadata: Mapping[str, Any]
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFinished:
    """A check has been evaluated, or could not be."""

    table: str
    name: str
    passed: bool
    severity: str
    metadata: Mapping[str, Any]
    error: str | None = None


RunEvent = AssetStarted | AssetProgress | AssetWarned | AssetFinished | CheckFinished


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A whole run: its assets in the order in which they ended, and its checks."""

    run_id: str
    succeeded: bool
    seconds: float
    assets: tuple[AssetFinished, ...]
    checks: tuple[CheckFinished, ...]

    @property
    def complaints(self) -> tuple[str, ...]:
        """One line for each asset and check that failed."""
        assets = [f"{asset.table}: {asset.error or 'failed'}" for asset in self.assets if asset.status is Status.FAILED]
        checks = [
            f"{check.table}: check {check.name}: {check.error or 'failed'}" for check in self.checks if not check.passed
        ]
        return (*assets, *checks)


class MaterializationError(FluvialError):
    """An asset, or a check that must hold, has failed; `summary` tells what did and what did not run."""

    def __init__(self, summary: RunSummary) -> None:
        super().__init__("; ".join(summary.complaints) or f"the run {summary.run_id} failed")
        self.summary = summary
