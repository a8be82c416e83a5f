"""
The imports between the folders of a package, and the circles of its modules: `python tests/import_arrows.py`.

An arrow is a pair of folders of which one imports from the other, however often. Imports for type checkers count. A
module beside the folders, which puts them together or which all of them use, is counted by itself.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = {"log_broker": ROOT, "fluvial": ROOT / "platform"}


def modules_of(package: str) -> dict[str, Path]:
    """Every module of a package, or of a package within it, by its dotted name."""
    top = PACKAGES[package.split(".", maxsplit=1)[0]]
    names = {}
    for path in top.joinpath(*package.split(".")).rglob("*.py"):
        parts = path.relative_to(top).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imports_of(package: str) -> dict[str, set[str]]:
    """For each module those of the same package that it imports."""
    modules = modules_of(package)
    return {name: set(_imported(path, modules)) - {name} for name, path in modules.items()}


def _imported(path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield from {whole if whole in modules else node.module} & modules.keys()
        elif isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & modules.keys()


def arrows(package: str) -> dict[tuple[str, str], int]:
    """How many imports there are from each folder of a package, or module beside them, into each other."""
    counted: dict[tuple[str, str], int] = defaultdict(int)
    for name, imported in imports_of(package).items():
        for other in imported:
            pair = _folder(package, name), _folder(package, other)
            if pair[0] != pair[1] and "" not in pair:
                counted[pair] += 1
    return dict(counted)


def between_folders(package: str) -> list[tuple[str, str]]:
    """The arrows of which both ends are folders."""
    modules = modules_of(package)
    folders = {
        name
        for name in map(partial(_folder, package), modules)
        if modules.get(f"{package}.{name}", Path()).stem == "__init__"
    }
    return [pair for pair in arrows(package) if folders.issuperset(pair)]


def _folder(package: str, module: str) -> str:
    return module.removeprefix(package).removeprefix(".").split(".")[0]


def circles(graph: Mapping[str, Iterable[str]]) -> list[set[str]]:
    """The sets of more than one node that all reach each other (Tarjan), the largest first."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in number:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in stack:
                lowest[node] = min(lowest[node], number[other])
        if lowest[node] == number[node]:
            members = set()
            while node not in members:
                members.add(stack.pop())
            if len(members) > 1:
                found.append(members)

    for node in list(graph):
        if node not in number:
            visit(node)
    return sorted(found, key=len, reverse=True)


def main() -> None:
    """Print the arrows between folders and the circles of modules for each package that is asked for."""
    for package in sys.argv[1:] or ["log_broker.core", "log_broker.server", "log_broker", "fluvial"]:
        pairs = arrows(package)
        count = len(between_folders(package))
        print(f"{package}: {count} arrows between folders, {len(pairs)} with modules beside them")
        for (here, there), count in sorted(pairs.items()):
            back = "  and back" if (there, here) in pairs else ""
            print(f"  {here} -> {there}  {count}{back}")
        for circle in circles(imports_of(package)):
            print(f"  circle of {len(circle)}: {' '.join(sorted(circle)[:6])}{' …' * (len(circle) > 6)}")


if __name__ == "__main__":
    main()
