"""
The four kinds of table that a project declares, and the topics that tables are published to.

What can be known without the contract is checked when a declaration is made (names, folds, inputs); what needs the
contract is checked before the first event is read. Either way a :class:`DeclarationError` says what and how to fix it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from fluvial.errors import FluvialError
from fluvial.spark.warehouse import is_table_name, table_name_of
from fluvial.tables.declare.folds import POSITION_FIELDS, Fold, Kind
from fluvial.tables.declare.reducers import Reduce, Reducer

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from fluvial.tables.declare.aggregates import Aggregation
    from fluvial.tables.declare.validity import Validity
    from fluvial.tables.declare.windows import TimeWindows

# A topic's name as Kafka allows it.
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_DURATION = re.compile(r"(?P<number>[0-9]{1,6}) +(?P<unit>second|minute|hour|day|week)s?")
FOLD_COLUMN = "_fold"
TOPICS = "topics"
# The databases of tables that have one row a key.
_KEYED = ("state", "compacted", "marts")
VERSION_COLUMNS = ("valid_from", "valid_to", "is_current")
"""What a row of a state with scd2 says of itself beside the state."""


Keyless = Literal["stop", "quarantine"]
"""What a record without the key that its contract names does to a run: stop it, or go to the quarantine table."""


class DeclarationError(FluvialError):
    """
    A declaration that cannot be carried out as it is written.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """
    Every event of a topic, in a table that only grows; with `dedupe`, of those with the same id only the first.

    With `dedupe_within` only events of so much time are compared with each other.
    """

    kind: ClassVar[str] = "history"
    needs_order: ClassVar[bool] = False
    keyless: ClassVar[Keyless] = "stop"  # of no meaning here: a history has every record
    topic: str
    name: str
    dedupe: str | None = None
    dedupe_within: timedelta | None = None

    @property
    def table(self) -> str:
        """
        The table's name in SQL.
        """
        return f"history.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """
    The latest event of each key of a topic; a tombstone takes its key away.
    """

    kind: ClassVar[str] = "compacted"
    needs_order: ClassVar[bool] = True
    topic: str
    name: str
    key: str | None = None
    keyless: Keyless = "stop"

    @property
    def table(self) -> str:
        """
        The table's name in SQL.
        """
        return f"compacted.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """
    One row an entity, folded from its events in the order of the log; a tombstone ends the entity.

    The columns are either `fields`, a fold each, or those of a `reducer`. With `order`, an SQL expression of the
    event's fields, that says which event comes after which, and the log only where it says nothing. With `scd2`, an SQL
    expression of an event's time, there is a row for each version of an entity.
    """

    kind: ClassVar[str] = "state"
    name: str
    topic: str
    key: str
    fields: Mapping[str, Fold] = field(hash=False)
    order: str | None = None
    reducer: Reducer | None = None
    scd2: str | None = None
    keyless: Keyless = "stop"

    @property
    def table(self) -> str:
        """
        The table's name in SQL.
        """
        return f"state.{self.name}"

    @property
    def columns(self) -> tuple[str, ...]:
        """
        The columns of the state itself.
        """
        return tuple(self.fields) if self.reducer is None else self.reducer.names

    @property
    def needs_order(self) -> bool:
        """
        Whether the records of a key must come in the order of the log, which only a partition gives them.
        """
        return self.order is None or self.scd2 is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """
    An ordinary Spark transform from tables to a table of the `marts` database, written again when an input has changed.

    Calling it calls the transform, so that a test may hand it DataFrames of its own; rows of inputs with `windows` are
    laid into these first, and none is late. `co_partitioned` demands of the topics of its inputs that they have equally
    many partitions. With a `key`, columns of the table, only the rows of
    keys that changed are written again; `paths` then has for each input the SQL expressions of the key's columns, None
    for an input that is read whole. What :func:`~fluvial.tables.declare.aggregates.aggregate` declares has an
    `aggregation`, which is its transform. Inputs that are `pinned` are read at this version, whatever came since. A
    streaming query (:func:`~fluvial.tables.declare.streaming.streaming`) has an `output_mode`. Inputs with a `validity`
    lead to the columns of the key before the window alone, and are joined to events of their time
    (:func:`~fluvial.tables.declare.joins.as_of`).
    """

    kind: ClassVar[str] = "pipeline"
    name: str
    inputs: tuple[str, ...]
    transform: Callable[..., Any]
    version: str | None = None
    co_partitioned: bool = False
    key: tuple[str, ...] = ()
    paths: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict, hash=False)
    aggregation: "Aggregation | None" = field(default=None, hash=False)
    pinned: Mapping[str, int] = field(default_factory=dict, hash=False)
    output_mode: str | None = None
    windows: "Mapping[str, TimeWindows]" = field(default_factory=dict, hash=False)
    validity: "Mapping[str, Validity]" = field(default_factory=dict, hash=False)

    @property
    def table(self) -> str:
        """
        The table's name in SQL.
        """
        return f"marts.{self.name}"

    @property
    def from_parts(self) -> bool:
        """
        Whether the rows of an aggregate can be made from the rows that changed alone: windows must not move by them.
        """
        moved = (each.is_session or each.emit == "final" for each in self.windows.values())
        return self.aggregation is not None and not any(moved)

    def __call__(self, *frames: Any) -> Any:
        return self.transform(*map(self.in_windows, self.inputs, frames))

    def in_windows(self, table: str, rows: Any) -> Any:
        """
        The rows of an input as the transform gets them where none is late.

        Raises DeclarationError for rows that cannot be laid into the windows.
        """
        if table not in self.windows:
            return rows
        windows = self.windows[table]
        windows.check(rows, f'pipeline("{self.name}")', table)
        return windows.laid_over(rows, self.paths[table] or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """
    The changes of a table, written to a topic: one record a changed key, a tombstone for one that is gone.
    """

    kind: ClassVar[str] = "publication"
    source: str
    topic: str
    key: str

    @property
    def table(self) -> str:
        """
        The name that it is run by, `topics.<topic>`; no table of SQL.
        """
        return f"{TOPICS}.{self.topic}"

    @property
    def inputs(self) -> tuple[str, ...]:
        """
        The table that it reads.
        """
        return (self.source,)


Declaration = History | Compacted | State | Pipeline | Publication
DECLARATION_TYPES = (History, Compacted, State, Pipeline, Publication)


def history(
    topic: str, *, name: str | None = None, dedupe: str | None = None, dedupe_within: str | None = None
) -> History:
    """
    The history of `topic`, as `history.<name>`; the name is the topic's unless one is given.

    `dedupe` names a field that is an event's id: a record whose id an earlier record of its partition has is left out.
    Records with the same id must have the same key, or else they may be in different partitions, and both stay.
    `dedupe_within`, such as "1 hour", leaves out only those whose timestamp is at most so far from the timestamp of an
    earlier record with the id that was kept, so that a batch is compared with the rows of that time and not with all.
    """
    _check_topic(topic)
    what = f'history("{topic}")'
    if dedupe is not None:
        check_column(dedupe, what, "dedupe")
    elif dedupe_within is not None:
        raise DeclarationError(f"{what}: dedupe_within needs dedupe, the field that is an event's id")
    return History(
        topic=topic,
        name=checked_name(name, topic, what),
        dedupe=dedupe,
        dedupe_within=None if dedupe_within is None else checked_duration(what, "dedupe_within", dedupe_within),
    )


def compacted(
    topic: str,
    *,
    name: str | None = None,
    key: str | None = None,
    keyless: Keyless = "stop",
    dedupe: str | None = None,
) -> Compacted:
    """
    The latest event a key of `topic`, as `compacted.<name>`.

    `key` names the column that holds the record key as text; without it, it is the field that the contract names as
    `"fluvial.key"`, or else `key`. `keyless` says what becomes of a record without the key that the contract names: it
    stops the run, or is put into the quarantine table of the topic. Only a history takes `dedupe`.
    """
    _check_topic(topic)
    what = f'compacted("{topic}")'
    _refuse_dedupe(what, dedupe)
    _check_keyless(what, keyless)
    if key is not None:
        check_column(key, what, "key")
    return Compacted(topic=topic, name=checked_name(name, topic, what), key=key, keyless=keyless)


def state(
    name: str,
    *,
    topic: str,
    key: str,
    fields: Mapping[str, Fold] | None = None,
    order: str | None = None,
    reduce: Reduce | None = None,
    returns: "str | StructType | None" = None,
    version: str | None = None,
    scd2: bool | str = False,
    with_position: bool = False,
    keyless: Keyless = "stop",
    dedupe: str | None = None,
) -> State:
    """
    One row an entity as `state.<name>`: the record key as text in column `key`, then the folded `fields` in order.

    `order` guards against events that come late: `latest`, `first` and `last_non_null` go by it (`order="version"`,
    `order="event_time"`) and by the place in the log among equals. Such a table may follow a topic that gets more
    partitions. A tombstone, which has no fields, ends what stands before it in the log.

    In the place of `fields`, `reduce` is a function of one's own from a state (a dict, None for an entity that is new)
    and an iterator over the events that come after it to the next state, None to end the entity. `returns` names the
    state's columns and their types in SQL; `version` names its code, where its text does not tell all.

    `scd2` keeps a row for each version of an entity: each event that changes the state closes one and begins the next.
    It is the event's time in SQL, or True for the record's own timestamp. `keyless` is as for :func:`compacted`.

    `with_position` adds `_partition`, `_offset` and `_updated_at` of the last record of the log that a row holds.
    Only a history takes `dedupe`.
    """
    what = f'state("{name}")'
    _refuse_dedupe(what, dedupe)
    _check_keyless(what, keyless)
    _check_topic(topic)
    checked_name(name, name, what)
    check_column(key, what, "key")
    if order is not None and (not isinstance(order, str) or not order.strip()):
        raise DeclarationError(f'{what}: order is {order!r}: name a column or write a line of SQL, as order="version"')
    reducer = None
    if reduce is not None or returns is not None or version is not None:
        if fields:
            raise DeclarationError(f"{what} declares both fields and a reducer: make two states of it")
        if order is not None:
            raise DeclarationError(
                f"{what}: a reducer sees events as they come, and one that comes late cannot be put before others: "
                "leave order out, and have the reducer compare the event with what the state remembers"
            )
        reducer = _checked_reducer(what, reduce, returns, version)
    elif not fields:
        raise DeclarationError(
            f"{what} declares no field: give it at least one, such as fields={{'events': count()}}, or a reducer"
        )
    fields = MappingProxyType(dict(fields or {}))
    seen = {key.lower()}
    for column in reducer.names if reducer is not None else fields:
        check_column(column, what, "field")
        if column.lower() in seen:
            raise DeclarationError(f"{what} has two columns named {column}: rename the field")
        if scd2 and column.lower() in VERSION_COLUMNS:
            raise DeclarationError(f"{what}: {column} is a column that scd2 adds: rename the field")
        seen.add(column.lower())
    if scd2 and key.lower() in VERSION_COLUMNS:
        raise DeclarationError(f"{what}: {key} is a column that scd2 adds: rename the key")
    check_folds(what, fields)
    _refuse_top(what, fields)
    if with_position:
        fields = _with_position(what, fields, has_reducer=reducer is not None, has_versions=bool(scd2))
    if isinstance(scd2, str) and not scd2.strip():
        raise DeclarationError(f'{what}: scd2 is {scd2!r}: name a time, as in scd2="event_time", or write scd2=True')
    return State(
        name=name,
        topic=topic,
        key=key,
        fields=fields,
        order=order,
        reducer=reducer,
        scd2="_timestamp" if scd2 is True else scd2 or None,
        keyless=keyless,
    )


def _refuse_dedupe(what: str, dedupe: str | None) -> None:
    if dedupe is not None:
        raise DeclarationError(
            f"{what}: a row of this table does not tell which ids it was made from: leave dedupe out, and declare "
            f'history(…, dedupe="{dedupe}") and a pipeline that aggregates it'
        )


def _refuse_top(what: str, fields: Mapping[str, Fold]) -> None:
    for column, fold in fields.items():
        if fold.kind is Kind.TOP:
            raise DeclarationError(
                f"{what}: field {column}: top is a field of aggregate(…): declare one over a history"
            )


def checked_duration(what: str, argument: str, text: str, *, least: int = 1) -> timedelta:
    """
    Read a duration as the watermarks of Structured Streaming are written: a number, at `least` this one, and a unit.
    """
    found = _DURATION.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None or int(found["number"]) < least:
        raise DeclarationError(f'{what}: {argument} is {text!r}: write a duration such as "10 minutes" or "1 day"')
    return timedelta(**{f"{found['unit']}s": int(found["number"])})


def _check_keyless(what: str, keyless: str) -> None:
    if keyless not in get_args(Keyless):
        raise DeclarationError(f'{what}: keyless is {keyless!r}: write keyless="stop" or keyless="quarantine"')


def _checked_reducer(what: str, reduce: object, returns: Any, version: str | None) -> Reducer:
    if reduce is None:
        given = "returns" if returns is not None else "version"
        raise DeclarationError(f"{what} has {given} and no reducer: give it reduce=, or leave {given} out")
    if returns is None:
        raise DeclarationError(
            f"{what} does not say what its reducer returns: name the columns of the state and their types, as in "
            'returns="total DECIMAL(10,2), seen TIMESTAMP"'
        )
    if version is not None and (not isinstance(version, str) or not version):
        raise DeclarationError(f'{what}: version is {version!r}: write a text, as in version="1"')
    try:
        return Reducer.of(reduce, returns, version)
    except ValueError as error:
        raise DeclarationError(f"{what}: {error}") from error


def _with_position(
    what: str, fields: Mapping[str, Fold], *, has_reducer: bool, has_versions: bool
) -> MappingProxyType[str, Fold]:
    if has_reducer:
        raise DeclarationError(
            f"{what}: with_position is for folds: have the reducer keep the event's _partition, _offset and "
            "_timestamp in columns of its own"
        )
    if has_versions:
        raise DeclarationError(
            f"{what}: a version of scd2 has _partition and _offset of the record that it begins with: leave "
            "with_position out"
        )
    return MappingProxyType({**fields, **POSITION_FIELDS})


def check_folds(what: str, fields: Mapping[str, Fold]) -> None:
    """
    Raise DeclarationError for a field that is no fold, or whose expression or condition is none.
    """
    for column, fold in fields.items():
        if not isinstance(fold, Fold):
            raise DeclarationError(f"{what}: field {column} is {fold!r}, not a fold: wrap it, as in latest({fold!r})")
        for text, role in ((fold.expr, "expression"), (fold.where, "condition")):
            if text is not None and (not isinstance(text, str) or not text.strip()):
                raise DeclarationError(f"{what}: the {role} of field {column} is {text!r}: write it as a line of SQL")


def publish(table: str, *, topic: str, key: str) -> Publication:
    """
    Write the changes of `table` to `topic`, each version once; run as `topics.<topic>`.

    Column `key`, of which every row has another value, becomes the record key as text; the other columns are the value,
    but for those whose name begins with an underscore.
    """
    what = f'publish("{table}")'
    _check_topic(topic)
    check_column(key, what, "key")
    database, _, name = table.partition(".")
    if database not in _KEYED or not is_table_name(name):
        raise DeclarationError(
            f"{what}: only a table with one row a key can be published, <database>.<table> with a database of "
            f"{', '.join(_KEYED)}: a history is its topic already"
        )
    return Publication(source=table, topic=topic, key=key)


def _check_topic(topic: str) -> None:
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in {".", ".."}:
        raise DeclarationError(
            f"{topic!r} is no topic name: use 1 to 249 letters, digits, dots, underscores and hyphens"
        )


def checked_name(name: str | None, default: str, what: str) -> str:
    """
    Return the name of a table, by default the topic's or function's; raise DeclarationError for what cannot be one.
    """
    if name is None:
        return table_name_of(default)
    if not is_table_name(name):
        raise DeclarationError(f"{what}: {name!r} is no table name: use letters, digits and underscores")
    return name


def check_column(column: str, what: str, role: str) -> None:
    """
    Raise DeclarationError for a name that no column of a user's may have.
    """
    if not is_table_name(column):
        raise DeclarationError(f"{what}: {role} {column!r} is no column name: use letters, digits and underscores")
    if column.startswith("_"):
        raise DeclarationError(
            f"{what}: {role} {column!r} starts with an underscore, as the columns of fluvial do: rename it"
        )
