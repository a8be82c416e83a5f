"""
Imported first, it leaves this Python the core's packages and pytest: what extras and `dev` add is not found.

Which those are is read from `pyproject.toml` and from what the installed distributions require.
"""

import sys
import tomllib
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from types import ModuleType

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).parents[3] / "pyproject.toml"


def closure(roots: Iterable[str]) -> set[str]:
    """The names of the distributions that pip would install for these requirements."""
    found: set[tuple[str, frozenset[str]]] = set()
    left = [Requirement(root) for root in roots]
    while left:
        each = left.pop()
        one = (canonicalize_name(each.name), frozenset(each.extras))
        if one in found:
            continue
        found.add(one)
        try:
            needs = map(Requirement, requires(each.name) or ())
        except PackageNotFoundError:  # of another platform
            continue
        extras = {"", *each.extras}
        left += [
            need for need in needs if need.marker is None or any(need.marker.evaluate({"extra": e}) for e in extras)
        ]
    return {name for name, _ in found}


class Blocker:
    """Finds nothing, and nothing else may find, what the core does not bring."""

    def __init__(self, blocked: frozenset[str]) -> None:
        self.blocked = blocked

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] in self.blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


core = closure([*tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["dependencies"], "pytest"]) | {"fluvial"}
blocked = frozenset(
    module
    for module, distributions in packages_distributions().items()
    if core.isdisjoint(map(canonicalize_name, distributions))
)
for package in ("cryptography", "dagster", "great_expectations", "matplotlib", "numpy", "pandas", "pyarrow", "pyspark"):
    assert package in blocked, package
sys.meta_path.insert(0, Blocker(blocked))
