"""Cycles of a dependency graph: one for each of its strongly connected components."""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """`before` came before `after`, as `key` shows."""

    before: int
    after: int
    key: str


def cycles(dependencies: Iterable[Dependency]) -> Iterator[tuple[Dependency, ...]]:
    """A shortest cycle through one member of every component that has any; nothing for an acyclic graph."""
    edges: dict[int, dict[int, Dependency]] = defaultdict(dict)
    for each in dependencies:
        edges[each.before].setdefault(each.after, each)
    for component in _components(edges):
        if len(component) > 1:
            yield _cycle(edges, min(component), component)


def _cycle(edges: dict[int, dict[int, Dependency]], start: int, within: set[int]) -> tuple[Dependency, ...]:
    came_by: dict[int, Dependency] = {}
    waiting = deque([start])
    while start not in came_by:
        for edge in edges[waiting.popleft()].values():
            if edge.after in within and edge.after not in came_by:
                came_by[edge.after] = edge
                waiting.append(edge.after)
    path = [came_by[start]]
    while path[0].before != start:
        path.insert(0, came_by[path[0].before])
    return tuple(path)


def _components(edges: dict[int, dict[int, Dependency]]) -> Iterator[set[int]]:
    """Tarjan's algorithm, with a stack of its own: histories are longer than Python's."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    open_: list[int] = []
    is_open: set[int] = set()
    for root in list(edges):
        if root in index:
            continue
        calls = [(root, iter(edges[root]))]
        index[root] = low[root] = len(index)
        open_.append(root)
        is_open.add(root)
        while calls:
            node, rest = calls[-1]
            for after in rest:
                if after not in index:
                    index[after] = low[after] = len(index)
                    open_.append(after)
                    is_open.add(after)
                    calls.append((after, iter(edges.get(after, {}))))
                    break
                if after in is_open:
                    low[node] = min(low[node], index[after])
            else:
                calls.pop()
                if calls:
                    low[calls[-1][0]] = min(low[calls[-1][0]], low[node])
                if low[node] == index[node]:
                    component = {node}
                    while (member := open_.pop()) != node:
                        component.add(member)
                    is_open -= component
                    yield component
