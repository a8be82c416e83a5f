"""
What a change of a contract does to the tables and pipelines that read its topic, before anybody registers it.

Every declared table is planned twice, over no records: as the contract stands and as it would be. The plans are those
of a run, and Spark and Delta are asked whether they hold, so that nothing here knows types or SQL.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluvial.quality.contract import contract_fields
from fluvial.spark.avro import Contract, decode
from fluvial.tables.declare.declarations import (
    Compacted,
    Declaration,
    DeclarationError,
    History,
    Pipeline,
    Publication,
    State,
)
from fluvial.tables.plan import frames
from fluvial.tables.plan.changes import is_stepwise, state_rows
from fluvial.tables.plan.checks import compacted_key, sentence, state_problems
from fluvial.tables.plan.guards import Care
from fluvial.tables.publishing.avro_schema import published_columns, value_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from fluvial.quality import Suite


@dataclass(frozen=True, slots=True, kw_only=True)
class Impact:
    """
    What becomes of one table, or of one of its columns.

    `breaks`: the table or what reads it would stop or go wrong; otherwise it is only to be known.
    """

    table: str
    column: str | None
    breaks: bool
    reason: str

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"table": self.table, "column": self.column, "breaks": self.breaks, "reason": self.reason}

    def __str__(self) -> str:
        where = self.table if self.column is None else f"{self.table}.{self.column}"
        return f"{'breaks' if self.breaks else 'changes'} {where}: {self.reason}"


def readers_of(declarations: Mapping[str, Declaration], topic: str) -> list[str]:
    """The tables that are made from a topic, and those that are made from them."""
    found: list[str] = []
    for name, declaration in declarations.items():
        if isinstance(declaration, Pipeline | Publication):
            reads = not set(declaration.inputs).isdisjoint(found)
        else:
            reads = declaration.topic == topic
        if reads:
            found.append(name)
    return found


def impacts(
    declarations: Mapping[str, Declaration],
    spark: "SparkSession",
    *,
    topic: str,
    before: Contract | None,
    after: Contract,
    other: Callable[[str], Contract | None],
    suites: Iterable["Suite"] = (),
) -> list[Impact]:
    """
    What changes for the declared tables when the contract of `topic` goes from `before` to `after`.

    `declarations` has inputs before what reads them, `other` knows the contracts of the other topics. What does not
    hold as things stand is not told again. Raises FluvialError for a contract that cannot be a table's rows.
    """
    wanted = readers_of(declarations, topic)
    needed = _with_inputs(declarations, wanted)

    def contract_of(name: str, own: Contract | None) -> Contract | None:
        return own if name == topic else other(name)

    old = _Plan(spark=spark)
    if before is not None:
        old.make(needed, lambda name: contract_of(name, before))
    new = _Plan(spark=spark)
    new.make(needed, lambda name: contract_of(name, after))
    found = [each for each in new.problems if each.table in wanted and not old.has(each)]
    with tempfile.TemporaryDirectory(prefix="fluvial-check-") as folder:
        for name in wanted:
            if name in old.types and name in new.types and not isinstance(declarations[name], Pipeline):
                reported = {each.column for each in found if each.table == name}
                changed = _column_changes(spark, Path(folder), name, old.types[name], new.types[name])
                found += [each for each in changed if each.column not in reported]
    for suite in suites:
        if suite.table in wanted and suite.table in new.types:
            known = old.types.get(suite.table)
            found += _suite_impacts(suite, known, new.types[suite.table], after)
    return sorted(found, key=lambda each: (not each.breaks, wanted.index(each.table), each.column or ""))


def _with_inputs(declarations: Mapping[str, Declaration], wanted: Sequence[str]) -> list[Declaration]:
    needed = set(wanted)
    for name in reversed(list(declarations)):
        declaration = declarations[name]
        if name in needed and isinstance(declaration, Pipeline | Publication):
            needed.update(declaration.inputs)
    return [declaration for name, declaration in declarations.items() if name in needed]


@dataclass(slots=True, kw_only=True)
class _Plan:
    """The tables as they would be planned over no records: their columns, and what does not hold."""

    spark: "SparkSession"
    types: dict[str, "StructType"] = field(default_factory=dict)
    problems: list[Impact] = field(default_factory=list)

    def has(self, problem: Impact) -> bool:
        """Whether the same place is known not to hold."""
        return any((each.table, each.column) == (problem.table, problem.column) for each in self.problems)

    def make(self, declarations: Iterable[Declaration], contract_of: Callable[[str], Contract | None]) -> None:
        """Plan the tables, inputs before what reads them."""
        for declaration in declarations:
            if isinstance(declaration, Pipeline):
                # A streaming query takes no frames without a stream.
                if declaration.output_mode is None:
                    self._pipeline(declaration)
                continue
            if isinstance(declaration, Publication):
                self._publication(declaration)
                continue
            contract = contract_of(declaration.topic)
            if contract is not None:
                self._table(declaration, contract)

    def _table(self, declaration: History | Compacted | State, contract: Contract) -> None:
        if isinstance(declaration, State):
            wrong = dict(state_problems(declaration, contract, self.spark))
            self.problems += [
                Impact(table=declaration.table, column=column, breaks=True, reason=reason)
                for column, reason in wrong.items()
            ]
            fields = {name: fold for name, fold in declaration.fields.items() if name not in wrong}
            if None in wrong or not (fields or declaration.reducer):
                return
            declaration = replace(declaration, fields=fields)
        try:
            self.types[declaration.table] = _type_of(declaration, contract, self.spark)
        except DeclarationError as error:
            self.problems.append(Impact(table=declaration.table, column=None, breaks=True, reason=str(error)))

    def _publication(self, declaration: Publication) -> None:
        source = self.types.get(declaration.source)
        if source is None:
            return
        columns = published_columns(source.names)
        problem = None
        if declaration.key not in columns:
            problem = f'publish("{declaration.source}") is by {declaration.key}, which would not be there'
        else:
            try:
                fields = [each.jsonValue() for each in source if each.name in columns]
                value_schema(declaration.topic, declaration.key, fields)
            except DeclarationError as error:
                problem = str(error)
        if problem is not None:
            self.problems.append(Impact(table=declaration.table, column=None, breaks=True, reason=problem))

    def _pipeline(self, declaration: Pipeline) -> None:
        missing = [name for name in declaration.inputs if name not in self.types]
        if missing:
            broken = [name for name in missing if any(each.table == name for each in self.problems)]
            if broken:
                reason = f'pipeline("{declaration.name}") reads {broken[0]}, which does not hold'
                self.problems.append(Impact(table=declaration.table, column=None, breaks=True, reason=reason))
            return
        inputs = [self.spark.createDataFrame([], self.types[name]) for name in declaration.inputs]
        try:
            self.types[declaration.table] = declaration(*inputs).schema
        except Exception as error:
            # Whatever the user's code raises over these columns, a run over them would raise too.
            reason = f'pipeline("{declaration.name}") does not fit its inputs: {sentence(error)}'
            self.problems.append(Impact(table=declaration.table, column=None, breaks=True, reason=reason))


def _type_of(declaration: History | Compacted | State, contract: Contract, spark: "SparkSession") -> "StructType":
    decoded = decode(_no_records(spark), contract)
    care = Care()
    match declaration:
        case History():
            return frames.history_rows(decoded, contract, care).schema
        case Compacted():
            key = compacted_key(declaration, contract, spark)
            return frames.compacted_rows(decoded, contract, care, key=key).drop("_deleted").schema
        case State():
            if is_stepwise(declaration):
                return state_rows(frames.keyed_events(decoded, contract, care), declaration).schema
            partials = frames.state_partials(frames.state_events(decoded, contract, care), declaration)
            return frames.state_rows(partials, declaration).schema


def _no_records(spark: "SparkSession") -> Any:
    return spark.createDataFrame(
        [], "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary"
    )


def _column_changes(
    spark: "SparkSession", folder: Path, table: str, old: "StructType", new: "StructType"
) -> Iterator[Impact]:
    for column in old:
        if column.name.startswith("_"):
            continue
        if column.name not in new.names:
            reason = "rows that come from now on have null here"
            yield Impact(table=table, column=column.name, breaks=False, reason=reason)
            continue
        was, becomes = column.dataType.simpleString(), new[column.name].dataType.simpleString()
        if was == becomes:
            continue
        why = _refusal_by_delta(spark, str(folder / f"{table}.{column.name}"), column.name, old, new)
        reason = f"the column is {was} and would be written as {becomes}"
        if why is None:
            yield Impact(table=table, column=column.name, breaks=False, reason=reason)
        else:
            yield Impact(table=table, column=column.name, breaks=True, reason=f"{reason}; Delta refuses: {why}")


def _refusal_by_delta(
    spark: "SparkSession", path: str, column: str, old: "StructType", new: "StructType"
) -> str | None:
    """Why a Delta table whose column is as in `old` takes no rows as in `new`; it is tried on a table of its own."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    spark.createDataFrame([], StructType([old[column]])).write.format("delta").save(path)
    rows = spark.createDataFrame([], StructType([new[column]]))
    try:
        rows.write.format("delta").mode("append").option("mergeSchema", "true").save(path)
    except PySparkException as error:
        return sentence(error)
    return None


class _Recorder:
    """Stands in for Great Expectations, to learn which columns a suite names without importing it."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def expectation(**arguments: Any) -> Any:
            self.asked.append(arguments)
            return arguments

        return expectation


def _suite_impacts(suite: "Suite", old: "StructType | None", new: "StructType", contract: Contract) -> Iterator[Impact]:
    recorder = _Recorder()
    try:
        suite.build(recorder)
    except Exception as error:
        reason = f"what suite {suite.name} asks for cannot be read: {sentence(error)}"
        yield Impact(table=suite.table, column=None, breaks=False, reason=reason)
        return
    reported: set[str] = set()
    enums = {each.name: each.symbols for each in contract_fields(contract.document)}
    for arguments in recorder.asked:
        columns = [arguments[name] for name in ("column", "column_A", "column_B") if name in arguments]
        for column in [*columns, *arguments.get("column_list", ())]:
            if column not in new.names and (old is None or column in old.names) and column not in reported:
                reported.add(column)
                reason = f"suite {suite.name} looks at this column, which would be gone"
                yield Impact(table=suite.table, column=column, breaks=True, reason=reason)
        values, symbols = arguments.get("value_set"), enums.get(arguments.get("column", ""))
        if values and symbols and not set(symbols) <= set(values):
            more = ", ".join(each for each in symbols if each not in values)
            reason = f"suite {suite.name} does not know {more}"
            yield Impact(table=suite.table, column=arguments["column"], breaks=True, reason=reason)
