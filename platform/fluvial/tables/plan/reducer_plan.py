"""
A reducer in a Spark plan: events and the rows of their entities go to Python sorted, and states come back.

Sorted partitions are streamed through Python, batches of many entities at once: an entity's events need not fit into
memory, and an entity of one event costs no Arrow stream of its own, as it would with `applyInArrow`.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fluvial.delta.errors import TableError
from fluvial.tables.declare.declarations import DeclarationError, State
from fluvial.tables.declare.reducers import Reducer
from fluvial.tables.plan import reducer_worker
from fluvial.tables.plan.by_value import by_value
from fluvial.tables.plan.guards import reducer_failure

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class ReducerError(TableError):
    """
    A reducer raised, or returned what is no state. Nothing of its batch was committed.

    `key` is the entity, `first` and `last` the (partition, offset) of the first and the last event that it was given.
    """

    def __init__(
        self, table: str, *, key: str, first: tuple[int, int] | None, last: tuple[int, int] | None, what: str
    ) -> None:
        self.key, self.first, self.last = key, first, last
        super().__init__(
            f"{table}: its reducer {what}, at key {key!r}{_places(first, last)}: nothing of the batch was committed; "
            f"repair the reducer and `fluvial run --rebuild {table}`, or only `fluvial run {table}` where the "
            "declaration has a version= and the rows that are there stay right"
        )

    @classmethod
    def from_cause(cls, error: BaseException, table: str) -> "ReducerError | None":
        """
        What a reducer did wrong that made a job fail; None when it was something else.
        """
        failure = reducer_failure(error)
        if failure is None:
            return None
        first, last = (tuple(failure[name]) if failure[name] else None for name in ("first", "last"))
        return cls(table, key=failure["key"], first=first, last=last, what=failure["what"])


def state_type(reducer: Reducer) -> "StructType":
    """
    The type of a reducer's state. Raises :class:`DeclarationError` for one that a table or Arrow does not know.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import DataType, StructField, StructType

    fields = []
    for name, text in reducer.columns:
        try:
            type_ = DataType.fromDDL(text)
            to_arrow_type(type_)
        except (PySparkException, TypeError) as error:
            line = str(error).strip().splitlines()[0]
            raise DeclarationError(
                f"column {name}: {text} is no type that a reducer's state can have: {line}"
            ) from error
        fields.append(StructField(name, type_))
    return StructType(fields)


def check_portable(reducer: Reducer) -> None:
    """
    Raise :class:`DeclarationError` for a reducer that cannot be sent to Spark's workers.
    """
    try:
        _by_value(reducer.function, reducer.function)
    except Exception as error:
        # Whatever the objects that it reaches raise when they are pickled.
        raise DeclarationError(
            f"its reducer {reducer} cannot be sent to Spark's workers: {error}: have it reach no open file, "
            "lock or client outside of itself"
        ) from error


def reduced(
    events: "DataFrame", old: "DataFrame | None", declaration: State, *, carried: Sequence[str] = (), each: bool = False
) -> "DataFrame":
    """
    The states that a batch makes of its entities: `_entity`, the state's columns, those of `carried`, `_alive`.

    `old` are the entities' rows in the table. With `each` there is a row for every event, and `carried` are columns of
    the event; otherwise one for every entity that has a state or had one, and they are columns of its row in `old`.
    """
    from pyspark.sql.functions import col
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import BooleanType, StringType, StructField, StructType

    assert declaration.reducer is not None, "the declaration has a reducer"
    source = events if each or old is None else old
    carries = [StructField(name, source.schema[name].dataType) for name in carried]
    inner = [field for field in events.schema if field.name not in {"_entity", "_tombstone", "_at"}]
    state = [*state_type(declaration.reducer)]
    # Names of the contract and of the state may be the same.
    wide = StructType(
        [
            StructField("_entity", StringType()),
            StructField("_tombstone", BooleanType()),
            *(StructField(f"_carried_{number}", field.dataType) for number, field in enumerate(carries)),
            *(StructField(f"_event_{number}", field.dataType) for number, field in enumerate(inner)),
            *(StructField(f"_state_{number}", field.dataType) for number, field in enumerate(state)),
        ]
    )
    event_names = [field.name for field in inner]
    none = [None] * len(state)
    rows = _shaped(
        events, ["_entity", "_tombstone", *(carried if each else [None] * len(carried)), *event_names, *none], wide
    )
    if old is not None:
        given = [None] * len(carried) if each else carried
        names = [declaration.key, None, *given, *([None] * len(inner)), *declaration.columns]
        rows = rows.unionAll(_shaped(old, names, wide))
    place = [f"_event_{event_names.index(name)}" for name in ("_partition", "_offset")]
    answer = StructType([wide[0], *state, *carries, StructField("_alive", BooleanType())])
    worker = _worker(declaration.reducer, event_names, carried=len(carried), schema=to_arrow_schema(answer), each=each)
    # An entity's row in the table is neither a tombstone nor none: there null, which sorts first.
    in_order = rows.repartition("_entity").sortWithinPartitions("_entity", col("_tombstone").isNotNull(), *place)
    return in_order.mapInArrow(worker, answer)


def _shaped(frame: "DataFrame", names: Sequence[str | None], shape: "StructType") -> "DataFrame":
    """The columns of these names, and nulls for None, under the names and types of a shape."""
    from pyspark.sql import functions as sql

    return frame.select(
        *(
            (sql.lit(None).cast(field.dataType) if name is None else sql.col(f"`{name}`")).alias(field.name)
            for name, field in zip(names, shape, strict=True)
        )
    )


def _worker(
    reducer: Reducer, events: Sequence[str], *, carried: int, schema: "pa.Schema", each: bool
) -> "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]":
    work = partial(
        reducer_worker.fold_batches,
        reduce=reducer.function,
        events=tuple(events),
        columns=reducer.columns,
        carried=carried,
        schema=schema,
        each=each,
    )

    # Spark looks at the code of what it is given, which a partial has none of.
    def fold(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        return work(batches)

    copy: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] = _by_value(fold, reducer.function)
    return copy


def _by_value(given: Any, reducer: Any) -> Any:
    """
    A copy of a function that is pickled with its code, and that of the package which a reducer is from.

    Workers need neither the project nor fluvial.
    """
    from pyspark import cloudpickle

    with by_value(reducer, reducer_worker.__name__):
        return cloudpickle.loads(cloudpickle.dumps(given))


def _places(first: tuple[int, int] | None, last: tuple[int, int] | None) -> str:
    if first is None or last is None:
        return ""
    if first == last:
        return f", partition {first[0]}, offset {first[1]}"
    return f", partition {first[0]}, offsets {first[1]} to {last[1]}"
