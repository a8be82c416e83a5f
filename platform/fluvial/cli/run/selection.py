"""`--select`: tables by name, by tag, and with what is upstream or downstream of them."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import typer

from fluvial.errors import FluvialError

if TYPE_CHECKING:
    from fluvial.config import Settings

_WORD = re.compile(r"(\+?)(tag:)?([^+]+)(\+?)")

Tags = Mapping[str, Mapping[str, str]]
"""The tags of each table."""


class EmptySelectionError(FluvialError):
    """No table has what is selected by."""


def selected(
    words: Sequence[str],
    inputs: Mapping[str, Sequence[str]],
    *,
    require: Callable[[Iterable[str]], None],
    tags: Callable[[], Tags],
) -> list[str]:
    """
    Return the tables that any of the words selects, in the order of `inputs`: the tables that each table reads.

    `name` or `tag:key[=value]`; a `+` before it adds all that is upstream, one after it all that is downstream.
    `require` raises for a name that is not declared. Raises a usage error, and EmptySelectionError for a tag that no
    table has.
    """
    readers: dict[str, list[str]] = {name: [] for name in inputs}
    for name, reads in inputs.items():
        for each in reads:
            readers.setdefault(each, []).append(name)
    chosen: set[str] = set()
    for word in words:
        found = _WORD.fullmatch(word)
        if found is None:
            raise typer.BadParameter(f"--select {word!r}: write NAME, +NAME, NAME+ or tag:KEY[=VALUE]")
        upstream, tag, name, downstream = found.groups()
        if tag:
            named = _tagged(name, tags())
        else:
            require([name])
            named = [name]
        chosen |= set(named)
        if upstream:
            chosen |= _reached(named, inputs)
        if downstream:
            chosen |= _reached(named, readers)
    return [name for name in inputs if name in chosen]


def tags_of_project(settings: "Settings") -> Tags:
    """Return the tags of the project's tables as Dagster shows them: those of their contracts and of their policies."""
    from fluvial.orchestration.assets.graph import table_of
    from fluvial.orchestration.run.code_location import definitions_of

    graph = definitions_of(settings).resolve_asset_graph()
    return {table_of(key): graph.get(key).tags for key in graph.executable_asset_keys}


def _tagged(word: str, tags: Tags) -> list[str]:
    key, equals, value = word.partition("=")
    named = [name for name, each in tags.items() if key in each and (not equals or each[key] == value)]
    if not named:
        there = sorted({f"{key}={value}" for each in tags.values() for key, value in each.items()})
        raise EmptySelectionError(f"no table has the tag {word}; there are {', '.join(there) or 'none'}")
    return named


def _reached(start: Iterable[str], edges: Mapping[str, Sequence[str]]) -> set[str]:
    """Return what is reached along the edges, without what no table is declared for."""
    reached: set[str] = set()
    left = list(start)
    while left:
        for each in edges.get(left.pop(), ()):
            if each not in reached:
                reached.add(each)
                left.append(each)
    return reached
