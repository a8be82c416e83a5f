"""
The reducer at work on Spark's workers: Arrow batches in, Arrow batches out, neither Spark nor Delta.

This module's code travels to the workers with the reducer, so it uses nothing else of fluvial.
"""

import json
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

MARK = "fluvial-reducer: "
"""What stands before the JSON that tells of a failure: Spark hands on text alone."""
ROWS_MAX = 10_000
_SHOWN_MAX = 80

Row = tuple[Any, ...]
Position = tuple[int, int]
Columns = Sequence[tuple[str, str]]
Reduce = Callable[[Any, Iterator[dict[str, Any]]], Any]


class ReduceError(RuntimeError):
    """A reducer raised, or returned what is no state; the text is MARK and JSON of key, first, last and what."""


def fold_batches(
    batches: Iterable["pa.RecordBatch"],
    reduce: Reduce,
    *,
    events: Sequence[str],
    columns: Columns,
    carried: int,
    schema: "pa.Schema",
    each: bool,
) -> "Iterator[pa.RecordBatch]":
    """
    Fold the events of entity after entity.

    A row is the entity, whether it is a tombstone (null for the entity's row in the table, which comes first), some
    columns that are `carried`, the event's (`events` names them) and the state's (names and SQL types). Rows are sorted
    by entity and place. The answer has `schema`: the entity, the state, what is carried, whether there is a state. It
    has a row for each entity, which carries what the table's row did; or with `each` one for each event, which carries
    what the event does.
    """
    fold = _Fold(reduce, events, columns, carried=carried, schema=schema)
    for entity, rows in groupby(_rows(batches), itemgetter(0)):
        (fold.each_event if each else fold.entity)(entity, rows)
        if len(fold.out) >= ROWS_MAX:
            yield fold.out.flush()
    if len(fold.out):
        yield fold.out.flush()


class _Fold:
    """The reducer, and where in a row it finds what."""

    def __init__(
        self, reduce: Reduce, events: Sequence[str], columns: Columns, *, carried: int, schema: "pa.Schema"
    ) -> None:
        self.out = _Output(columns, schema)
        self._reduce = reduce
        self._events = events
        self._columns = [name for name, _ in columns]
        self._start = 2 + carried
        self._position: Callable[[Row], Position] = itemgetter(
            *(self._start + list(events).index(name) for name in ("_partition", "_offset"))
        )

    def entity(self, entity: str, rows: Iterator[Row]) -> None:
        """Fold all that came, and put the state out that it ends with."""
        state, row, kept = self._standing(rows)
        run = None
        while row is not None:
            if row[1]:
                state, run = None, None
                row = next(rows, None)
                continue
            run = self._run(entity, row, rows)
            state = self._reduced(state, run)
            # Events that the reducer left are behind it all the same.
            deque(run, maxlen=0)
            row = run.after
        if state is not None or kept is not None:
            first, last = (run.first, run.last) if run is not None else (None, None)
            self.out.add(entity, state, kept or (None,) * (self._start - 2), first, last)

    def each_event(self, entity: str, rows: Iterator[Row]) -> None:
        """Fold one event after another, and put out the state after each."""
        state, row, _ = self._standing(rows)
        while row is not None:
            state = None if row[1] else self._reduced(state, self._run(entity, row, iter(())))
            self.out.add(entity, state, row[2 : self._start], self._position(row), self._position(row))
            row = next(rows, None)

    def _standing(self, rows: Iterator[Row]) -> tuple[Any, Row | None, Row | None]:
        """The state in the table, the first event, and what the table's row carries."""
        row = next(rows, None)
        if row is None or row[1] is not None:
            return None, row, None
        state = dict(zip(self._columns, row[self._start + len(self._events) :], strict=True))
        return state, next(rows, None), row[2 : self._start]

    def _run(self, entity: str, first: Row, rows: Iterator[Row]) -> "_Run":
        return _Run(entity, first, rows, names=self._events, start=self._start, position=self._position)

    def _reduced(self, state: Any, run: "_Run") -> Any:
        try:
            return self._reduce(state, run)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            file = where.filename.replace("\\", "/").rpartition("/")[2]
            what = f"raised {type(error).__name__}: {error} ({file}, line {where.lineno})"
            raise _failure(run.entity, run.first, run.last, what) from error


class _Run:
    """The events of one entity up to its next tombstone, as dicts."""

    def __init__(
        self,
        entity: str,
        first: Row,
        rows: Iterator[Row],
        *,
        names: Sequence[str],
        start: int,
        position: Callable[[Row], Position],
    ) -> None:
        self.entity = entity
        self.first = position(first)
        self.after: Row | None = None
        """The tombstone that ended the run; None at the entity's end."""
        self._rows = rows
        self._names = names
        self._start = start
        self._position = position
        self._next: Row | None = first
        self._last = first

    @property
    def last(self) -> Position:
        """The place of the last event that was handed out."""
        return self._position(self._last)

    def __iter__(self) -> "_Run":
        return self

    def __next__(self) -> dict[str, Any]:
        row = self._next
        if row is None:
            raise StopIteration
        self._last = row
        following = next(self._rows, None)
        if following is not None and following[1]:
            self.after, following = following, None
        self._next = following
        return dict(zip(self._names, row[self._start :], strict=False))


class _Output:
    """Rows of the answer until they are a batch."""

    def __init__(self, columns: Columns, schema: "pa.Schema") -> None:
        self._columns = columns
        self._schema = schema
        self._nested = any(_is_nested(schema.field(name).type) for name, _ in columns)
        self._entities: list[str] = []
        self._values: list[Row] = []
        self._carried: list[Row] = []
        self._alive: list[bool] = []
        self._positions: list[tuple[Any, Any]] = []

    def __len__(self) -> int:
        return len(self._entities)

    def add(self, entity: str, state: Any, carried: Row, first: Any, last: Any) -> None:
        """Add a row; the state may be changed in place by its owner afterwards."""
        values = (None,) * len(self._columns) if state is None else self._taken(entity, state, first, last)
        self._entities.append(entity)
        self._values.append(deepcopy(values) if self._nested else values)
        self._carried.append(carried)
        self._alive.append(state is not None)
        self._positions.append((first, last))

    def _taken(self, entity: str, state: Any, first: Any, last: Any) -> Row:
        names = [name for name, _ in self._columns]
        if not isinstance(state, Mapping):
            what = f"returned {_shown(state)}, which is neither a dict of {', '.join(names)} nor None"
        elif len(state) == len(names) and all(name in state for name in names):
            return tuple([state[name] for name in names])
        elif missing := [name for name in names if name not in state]:
            what = f"returned no {missing[0]}: a state has all of {', '.join(names)}, None where there is nothing"
        else:
            more = next(name for name in state if name not in names)
            what = f"returned {more!r}, which `returns` does not declare"
        raise _failure(entity, first, last, what)

    def flush(self) -> "pa.RecordBatch":
        """The rows so far as a batch; raises ReduceError for the first value that its column cannot hold as it is."""
        import pyarrow as pa

        types = self._schema.types
        arrays = [pa.array(self._entities, types[0])]
        for position, (name, told) in enumerate(self._columns):
            arrays.append(self._array(name, told, types[1 + position], [values[position] for values in self._values]))
        start = 1 + len(self._columns)
        for position, type_ in enumerate(types[start:-1]):
            arrays.append(pa.array([carried[position] for carried in self._carried], type_))
        arrays.append(pa.array(self._alive, types[-1]))
        for kept in (self._entities, self._values, self._carried, self._alive, self._positions):
            kept.clear()
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, name: str, told: str, type_: "pa.DataType", values: list[Any]) -> "pa.Array":
        import pyarrow as pa

        # The next batch goes on from what the table gives back: that must be what the reducer would have gone on from.
        try:
            array = pa.array(values, type_)
            if _plain(array) == values:
                return array
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            pass  # told of the one value that it is about
        for number, value in enumerate(values):
            wrong = _misfit(value, type_)
            if wrong is not None:
                first, last = self._positions[number]
                what = f"returned {_shown(value)} for {name}, {wrong} as {told}"
                raise _failure(self._entities[number], first, last, what)
        return pa.array(values, type_)


def _misfit(value: Any, type_: "pa.DataType") -> str | None:
    import pyarrow as pa

    try:
        back = _plain(pa.array([value], type_))[0]
        same = _same(value, back)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        return f"which does not fit ({error})"
    return None if same else f"which would come back as {_shown(back)}"


def _same(one: Any, other: Any) -> bool:
    """Equality by which NaN is itself."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other or (one != one and other != other))  # noqa: PLR0124 (only NaN differs from itself)


def _rows(batches: "Iterable[pa.RecordBatch]") -> Iterator[Row]:
    for batch in batches:
        yield from zip(*map(_plain, batch.columns), strict=True)


def _plain(array: "pa.Array") -> list[Any]:
    """The values as Python's own; a map is a dict."""
    values: list[Any] = array.to_pylist()
    if _is_nested(array.type) and _has_map(array.type):
        return [_with_dicts(value, array.type) for value in values]
    return values


def _with_dicts(value: Any, type_: "pa.DataType") -> Any:
    import pyarrow as pa

    if value is None or not _is_nested(type_):
        return value
    if pa.types.is_map(type_):
        return {key: _with_dicts(item, type_.item_type) for key, item in value}
    if pa.types.is_struct(type_):
        return {field.name: _with_dicts(value[field.name], field.type) for field in type_}
    return [_with_dicts(item, type_.value_type) for item in value]


def _is_nested(type_: "pa.DataType") -> bool:
    return bool(type_.num_fields > 0)


def _has_map(type_: "pa.DataType") -> bool:
    import pyarrow as pa

    return pa.types.is_map(type_) or any(_has_map(type_.field(number).type) for number in range(type_.num_fields))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


def _failure(entity: str, first: Any, last: Any, what: str) -> ReduceError:
    return ReduceError(MARK + json.dumps({"key": entity, "first": first, "last": last, "what": what}))
