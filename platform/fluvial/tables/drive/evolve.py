"""
A table whose contract has a newer version: its rows become what that version makes of their records.

It is done before the next batch is read, in a commit of its own that reads nothing of the log, so that each version of
the table is what its stamp says: the records below its offsets, all read as one version of the contract. Columns that
are null in every older row are only added; otherwise the table is written once more.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from fluvial.delta.commit import KEYED_TABLE, append, replace_table
from fluvial.delta.errors import TableError
from fluvial.delta.stamp import Position, Stamp, new_run_id
from fluvial.spark.avro import Contract, SchemaPoint, decode, value_type
from fluvial.tables.declare.declarations import Compacted, History, State
from fluvial.tables.plan.checks import compacted_key
from fluvial.tables.plan.evolution import Evolution, Keep, NotInTableError, evolution
from fluvial.tables.plan.evolved_rows import cast_rows, evolved_rows
from fluvial.tables.plan.log_rows import rows_of_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WORD = re.compile(r"\w+")
_RECORDS = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """
    What a newer contract does to a table: `write` commits it with `stamp`; `what` says it to a user.
    """

    stamp: Stamp
    write: Callable[[], None]
    what: str


def contract_of(contract: Contract, stamp: Stamp) -> Contract:
    """
    The contract that a table's rows are read as: as its stamp says, or the newest where it says nothing that is known.
    """
    return (None if stamp.schema is None else contract.as_of(SchemaPoint(*stamp.schema))) or contract


def earlier_contract(contract: Contract, stamp: Stamp) -> Contract | Literal["unknown"] | None:
    """
    The contract that a table's rows are read as where it is not `contract` itself; "unknown" to a stamp without it.
    """
    if stamp.schema is None:
        return "unknown"
    if contract.point is not None and stamp.schema == contract.point.as_pair():
        return None
    return _unless_read_alike(contract_of(contract, stamp), contract)


def _unless_read_alike(earlier: Contract | None, contract: Contract) -> Contract | None:
    return None if earlier is None or earlier.reader == contract.reader else earlier


def plan_evolution(
    declaration: History | Compacted | State,
    session: "SparkSession",
    path: str,
    position: Position,
    *,
    contract: Contract,
    earlier: Contract | Literal["unknown"],
) -> Rewrite | None:
    """
    What the table, whose rows are read as the `earlier` contract, needs before records are added to it that are read as
    `contract`; None where it needs nothing.

    Raises :class:`~fluvial.delta.errors.TableError` where only the log can tell what its rows become.
    """
    stamp = position.stamp
    assert stamp is not None, "a table that is there has a stamp"
    assert contract.point is not None, "the contract is registered"
    table = session.read.format("delta").option("versionAsOf", str(position.version)).load(path)
    before = _guessed(contract, set(table.columns)) if earlier == "unknown" else earlier
    if before is None:
        return None
    new = replace(
        stamp,
        batch=stamp.batch + 1,
        offsets={partition: (end, end) for partition, end in position.ends.items()},
        removed=0,
        rewritten={},
        schema=contract.point.as_pair(),
        run=new_run_id(),
    )
    try:
        if isinstance(declaration, State):
            return _of_state(declaration, session, table, path=path, stamp=new, before=before, contract=contract)
        return _of_records(declaration, session, table, path=path, stamp=new, before=before, contract=contract)
    except NotInTableError as error:
        raise TableError(
            f"{declaration.table}: {_version(contract)} cannot be applied to the rows "
            f"that are there: {error}: `fluvial run --rebuild {declaration.table}` reads their records again"
        ) from error


def _of_records(
    declaration: History | Compacted,
    session: "SparkSession",
    table: "DataFrame",
    *,
    path: str,
    stamp: Stamp,
    before: Contract,
    contract: Contract,
) -> Rewrite | None:
    plan = evolution(before.reader, contract.reader, before.writers)
    if plan.is_nothing:
        return None
    what = _version(contract)
    own = {compacted_key(declaration, contract, session)} if isinstance(declaration, Compacted) else set()
    if plan.only_adds_nulls:
        no_rows = _no_rows(declaration, session, contract)
        return Rewrite(
            stamp=stamp,
            write=lambda: append(no_rows, path, stamp),
            what=f"{what} adds {_listed(plan)}",
        )
    rows = evolved_rows(table, plan, value_type(session, contract), own=own)
    properties = {} if isinstance(declaration, History) else KEYED_TABLE
    return Rewrite(
        stamp=stamp,
        write=lambda: replace_table(rows, path, stamp, properties),
        what=f"{what} changes {_listed(plan)} in rows that are there: writing the table once more",
    )


def _of_state(
    declaration: State,
    session: "SparkSession",
    table: "DataFrame",
    *,
    path: str,
    stamp: Stamp,
    before: Contract,
    contract: Contract,
) -> Rewrite | None:
    """A state holds no records: what its folds look at must be what it was, but for a wider type."""
    known = set(before.field_names)
    used = known if declaration.reducer is not None else {word.lower() for word in _words(declaration)}
    plan = evolution(
        before.reader,
        contract.reader,
        before.writers,
        only=lambda name: name in known if declaration.reducer is not None else name.lower() in used,
    )
    changed = [
        column.name
        for column in plan.columns
        if not all(source.stored is not None and isinstance(source.value, Keep) for source in column.sources.values())
    ]
    if changed:
        raise NotInTableError(", ".join(changed), "would have been otherwise in records that were folded already")
    types = _no_rows(declaration, session, contract).schema
    shape = {field.name: field.dataType.simpleString() for field in types}
    if all(field.dataType.simpleString() == shape.get(field.name) for field in table.schema):
        return None
    rows = cast_rows(table, types)
    return Rewrite(
        stamp=stamp,
        write=lambda: replace_table(rows, path, stamp, KEYED_TABLE),
        what=f"{_version(contract)} widens types: writing the table once more",
    )


def _version(contract: Contract) -> str:
    assert contract.point is not None
    return f"version {contract.point.reader} of {contract.subject}"


def _words(declaration: State) -> Iterator[str]:
    texts = [*declaration.fields, declaration.order, declaration.scd2]
    for fold in declaration.fields.values():
        texts += [fold.expr, fold.where]
    for text in filter(None, texts):
        yield from _WORD.findall(text)


def _no_rows(declaration: History | Compacted | State, session: "SparkSession", contract: Contract) -> "DataFrame":
    nothing = session.createDataFrame([], _RECORDS)
    return rows_of_log(declaration, decode(nothing, contract), contract)


def _guessed(contract: Contract, columns: set[str]) -> Contract | None:
    """The earlier contract of a table whose stamp names no version: the newest one whose fields it has."""
    for each in sorted(contract.versions, key=lambda version: version.version, reverse=True):
        found = contract.as_of(SchemaPoint(each.version, each.version))
        if found is not None and columns.issuperset(found.field_names):
            return _unless_read_alike(found, contract)
    return None


def _listed(plan: Evolution) -> str:
    names = [*plan.changed, *plan.renamed]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
