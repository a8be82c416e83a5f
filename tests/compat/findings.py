"""What `FINDINGS.md` says of the tests that may fail or be skipped: the only list of exceptions."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).with_name("FINDINGS.md")

_ROW = re.compile(r"^\| *(?P<suite>[\w-]+) *\| *`(?P<test>[^`]+)` *\| *(?P<why>[^|]*[^|\s]) *\|$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    How a suite ended: the names of its tests by outcome, and of each skipped one the reason it gave.

    `problem` is set when the suite could not run or broke off; then nothing else counts.
    """

    passed: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    skipped: Mapping[str, str]
    problem: str | None = None

    @property
    def total(self) -> int:
        return len(self.passed) + len(self.failed) + len(self.skipped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What remains of an outcome when the allowlist is taken off: good only when all of it is empty."""

    failed: tuple[str, ...]
    skipped: tuple[str, ...]
    stale: tuple[str, ...]
    problem: str | None

    @property
    def good(self) -> bool:
        return not (self.failed or self.skipped or self.stale or self.problem)


def allowlist(page: str, *, secured: bool = False) -> dict[str, dict[str, str]]:
    """
    Suite to test to reason, from the table rows of the page's section `Allowlist`.

    What its parts `Secured` and `In plain text` have counts for brokers of that kind alone.
    """
    _, _, section = page.partition("\n## Allowlist\n")
    always, *parts = section.partition("\n## ")[0].split("\n### ")
    kind = "Secured\n" if secured else "In plain text\n"
    allowed: dict[str, dict[str, str]] = {}
    for line in "\n".join([always, *(part for part in parts if part.startswith(kind))]).splitlines():
        if (row := _ROW.match(line)) is not None:
            allowed.setdefault(row["suite"], {})[row["test"]] = row["why"]
    return allowed


def judge(outcome: Outcome, allowed: Iterable[str]) -> Verdict:
    """
    Hold an outcome against the allowed exceptions of its suite.

    An exception that is no longer needed is as wrong as one that is missing: the list would come to hide a regression.
    A suite in which nothing ran is a problem, too.
    """
    exceptions = set(allowed)
    problem = outcome.problem
    if problem is None and not outcome.passed:
        problem = "no test passed"
    return Verdict(
        failed=tuple(sorted(outcome.failed - exceptions)),
        skipped=tuple(sorted(outcome.skipped.keys() - exceptions)),
        stale=tuple(sorted(exceptions - outcome.failed - outcome.skipped.keys())) if problem is None else (),
        problem=problem,
    )
