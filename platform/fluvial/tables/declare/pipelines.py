"""
Pipelines: what a transform reads, by what key its table is brought up to date, and in which windows its inputs lie.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fluvial.spark.warehouse import DATABASES, is_table_name
from fluvial.tables.declare.declarations import DeclarationError, Pipeline, check_column, checked_name
from fluvial.tables.declare.windows import WINDOW_START, TimeWindows, check_windows

# The databases of tables that are made from a topic alone.
_OF_TOPICS = ("history", "compacted", "state")

KeyPath = str | Sequence[str] | None
"""What leads from an input to the key: a column or SQL expression for each column of the key; None for no path."""


def pipeline(
    *,
    name: str,
    inputs: Sequence[str] | Mapping[str, KeyPath],
    key: str | Sequence[str] = (),
    version: str | None = None,
    co_partitioned: bool = False,
    pinned: Mapping[str, int] | None = None,
    windows: Mapping[str, TimeWindows] | None = None,
) -> Callable[[Callable[..., Any]], Pipeline]:
    """
    Declare the decorated function as `marts.<name>`; it gets one DataFrame for each of `inputs`, in their order.

    The table is written again when a table among `inputs` has a new version, or when the code has: `version` says so
    by hand, and without it the function's text and that of all it uses in the project's modules do.

    `key` names columns of the table: then only the rows of keys that changed are computed and replaced, from the rows
    of these keys in the inputs. An input has the columns of the key by the same names, or `inputs` is a mapping that
    says for each what leads to them: `inputs={"history.orders": "customer", "state.customers": "id"}`. None is for an
    input that is read whole; a change of it runs the full query.

    Without a `key`, a table whose rows are each made of one row of an input (filters, columns, explode, union, a join
    with tables that have not changed) follows the rows that came and went; Spark's plan shows whether it is one.

    `pinned` has the versions at which inputs are read, such as `{"compacted.cities": 12}`, until the declaration names
    another one; inputs that it does not name are read at their newest.

    `windows` lays the rows of inputs into windows of event time before the transform gets them: a row comes once for
    each window that it lies in, with the columns `window_start` and `window_end`. The start of a tumbling or hopping
    window is a part of the key of itself, the last one; of sessions whole keys are computed again.

    `co_partitioned` says that the topics of the inputs are also joined by readers that go by partitions: with different
    numbers of partitions they are refused (:mod:`fluvial.tables.declare.co_partitioning`).
    """
    what = f'pipeline("{name}")'
    checked_name(name, name, what)
    if isinstance(inputs, str) or not inputs:
        raise DeclarationError(f'{what} needs a list of input tables, such as inputs=["history.flight_events"]')
    for table in inputs:
        database, _, table_name = table.partition(".")
        if database not in DATABASES or not is_table_name(table_name):
            raise DeclarationError(
                f"{what}: input {table!r} is not <database>.<table> with a database of {', '.join(DATABASES)}"
            )
    if f"marts.{name}" in inputs:
        raise DeclarationError(f"{what} reads the table that it writes: give it another name")
    key = _checked_key(what, key)
    windows = MappingProxyType(dict(windows or {}))
    check_windows(what, windows, list(inputs))
    if any(each.emit == "final" for each in windows.values()):
        _check_final(what, inputs, windows, pinned or {})
    paths = MappingProxyType(_paths(what, inputs, key, windows))
    if any(not each.is_session for each in windows.values()):
        key = (*key, WINDOW_START)
    pinned = MappingProxyType(_checked_pinned(what, inputs, pinned or {}))
    if co_partitioned:
        _check_co_partitioned(what, list(inputs))

    def declare(transform: Callable[..., Any]) -> Pipeline:
        return Pipeline(
            name=name,
            inputs=tuple(inputs),
            transform=transform,
            version=version,
            co_partitioned=co_partitioned,
            key=key,
            paths=paths,
            pinned=pinned,
            windows=windows,
        )

    return declare


def _checked_key(what: str, key: str | Sequence[str]) -> tuple[str, ...]:
    columns = (key,) if isinstance(key, str) else tuple(key)
    for column in columns:
        check_column(column, what, "key")
    if WINDOW_START in {column.lower() for column in columns}:
        raise DeclarationError(f"{what}: key names {WINDOW_START}, which windows add to it of themselves: leave it out")
    if len({column.lower() for column in columns}) < len(columns):
        raise DeclarationError(f"{what}: key names a column twice: {', '.join(columns)}")
    return columns


def _checked_pinned(what: str, inputs: Collection[str], pinned: Mapping[str, int]) -> dict[str, int]:
    for table, version in pinned.items():
        if table not in inputs:
            raise DeclarationError(f"{what} pins {table}, which is none of its inputs: {', '.join(inputs)}")
        if not isinstance(version, int) or isinstance(version, bool) or version < 0:
            raise DeclarationError(f"{what}: {table} is pinned to {version!r}: write a version of it, from 0")
    return dict(pinned)


def _check_final(
    what: str, inputs: Collection[str], windows: Mapping[str, TimeWindows], pinned: Mapping[str, int]
) -> None:
    for table in inputs:
        if table not in windows and table not in pinned:
            raise DeclarationError(
                f"{what}: {table} may change, and with it windows that are final: pin it to a version, as in "
                f'pinned={{"{table}": 12}}, or give it windows as well'
            )


def _paths(
    what: str,
    inputs: Sequence[str] | Mapping[str, KeyPath],
    key: tuple[str, ...],
    windows: Mapping[str, TimeWindows],
) -> dict[str, tuple[str, ...] | None]:
    """What leads from each input to the key, and to the window where its start is a part of the key."""
    if not isinstance(inputs, Mapping):
        found: dict[str, tuple[str, ...] | None] = dict.fromkeys(inputs, key) if key or windows else {}
    elif not key and not windows:
        raise DeclarationError(
            f'{what}: inputs say what leads to a key, and there is none: name it, as in key="customer", or list the '
            "inputs only"
        )
    else:
        found = {table: _path(what, table, path, key) for table, path in inputs.items()}
    if found and all(steps is None for steps in found.values()):
        raise DeclarationError(f"{what}: no input leads to the key: say for at least one which column does")
    return _with_windows(what, found, key, windows)


def _path(what: str, table: str, path: KeyPath, key: tuple[str, ...]) -> tuple[str, ...] | None:
    steps = (path,) if isinstance(path, str) else None if path is None else tuple(path)
    if steps is not None and (len(steps) != len(key) or not all(isinstance(each, str) and each for each in steps)):
        raise DeclarationError(
            f"{what}: {path!r} of input {table} must be one column or SQL expression for each column of the key "
            f"({', '.join(key) or 'of which it has none beside the window'}), or None for an input that is read whole"
        )
    return steps


def _with_windows(
    what: str,
    paths: Mapping[str, tuple[str, ...] | None],
    key: tuple[str, ...],
    windows: Mapping[str, TimeWindows],
) -> dict[str, tuple[str, ...] | None]:
    """The paths, of which those of tumbling and hopping windows lead to the window's start as well."""
    for table, each in windows.items():
        if paths[table] is None:
            raise DeclarationError(f"{what}: {table} has windows and is read whole: say which column leads to the key")
        if each.is_session and not key:
            raise DeclarationError(f'{what}: a session is one of a key: name it, as in key="visitor"')
    if not windows or any(each.is_session for each in windows.values()):
        return dict(paths)
    for table, steps in paths.items():
        if steps is not None and table not in windows:
            raise DeclarationError(
                f"{what}: {table} leads to no window: give it windows as well, or None for an input that is read whole"
            )
    return {table: None if steps is None else (*steps, WINDOW_START) for table, steps in paths.items()}


def _check_co_partitioned(what: str, inputs: Sequence[str]) -> None:
    of_topics = [table for table in inputs if table.partition(".")[0] in _OF_TOPICS]
    for table in inputs:
        if table not in of_topics:
            raise DeclarationError(
                f"{what}: co_partitioned compares the topics of its inputs, and {table} is made from no topic: join it "
                f"in another pipeline, or read a table of {', '.join(_OF_TOPICS)}"
            )
    if len(of_topics) < 2:
        raise DeclarationError(f"{what}: co_partitioned compares topics, and there is one input: leave it out")
