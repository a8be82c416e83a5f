"""
A declaration against the contract of its topic, before the first event is read.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from fluvial.delta.errors import TableError
from fluvial.delta.stamp import Stamp
from fluvial.spark.avro import Contract, value_type
from fluvial.tables.declare.declarations import Compacted, Declaration, DeclarationError, History, State
from fluvial.tables.declare.folds import Fold
from fluvial.tables.plan.reducer_plan import check_portable, state_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def key_column(declaration: Compacted, contract: Contract) -> str:
    """
    The name that the column of the record key has in a compacted table, whatever its type.
    """
    return declaration.key or contract.key_field or "key"


def compacted_key(declaration: Compacted, contract: Contract, spark: "SparkSession") -> str:
    """
    The name of the column that holds the record key of a compacted table.
    """
    key = key_column(declaration, contract)
    fields = {field.name: field.dataType.simpleString() for field in value_type(spark, contract).fields}
    if fields.get(key, "string") != "string":
        raise DeclarationError(
            f'compacted("{declaration.topic}"): the record key is text, and {key} is {fields[key]} in '
            f'{contract.subject}: give the key a column of its own, such as key="{key}_key"'
        )
    return key


def check_state(declaration: State, contract: Contract, spark: "SparkSession") -> None:
    """
    Analyse every fold of a state over the contract's fields. Raises :class:`DeclarationError` for the first that fails.
    """
    for _, reason in state_problems(declaration, contract, spark):
        raise DeclarationError(reason)


def state_problems(declaration: State, contract: Contract, spark: "SparkSession") -> Iterator[tuple[str | None, str]]:
    """
    The fields of a state that do not fit the contract, each with the reason; None stands for the declaration itself.
    """
    from pyspark.errors import AnalysisException, ParseException

    events = _no_events(spark, contract)
    if declaration.order is not None:
        try:
            events.selectExpr(f"max(struct({declaration.order} AS _order, _partition, _offset)) AS it").schema  # noqa: B018
        except (AnalysisException, ParseException) as error:
            yield (
                None,
                f'state("{declaration.name}"): order = {declaration.order} does not fit {contract.subject}: '
                f"{sentence(error)}",
            )
    if declaration.scd2 is not None:
        try:
            found = events.selectExpr(f"({declaration.scd2}) AS it").schema["it"].dataType.simpleString()
            wrong = None if found == "timestamp" else f"is {found} and no timestamp: make it one"
        except (AnalysisException, ParseException) as error:
            wrong = sentence(error)
        if wrong is not None:
            yield (
                None,
                f'state("{declaration.name}"): scd2 = {declaration.scd2} does not fit {contract.subject}: {wrong}',
            )
    if declaration.reducer is not None:
        try:
            state_type(declaration.reducer)
            check_portable(declaration.reducer)
        except DeclarationError as error:
            yield None, f'state("{declaration.name}"): {error}'
    for name, fold in declaration.fields.items():
        try:
            wrong = _type_problem(events, fold, contract.subject)
            if wrong is None:
                _aggregate(events, fold)
        except (AnalysisException, ParseException) as error:
            wrong = f"does not fit {contract.subject}: {sentence(error)}"
        if wrong is not None:
            yield name, f'state("{declaration.name}"): field {name} = {fold} {wrong}'


def _type_problem(events: "DataFrame", fold: Fold, subject: str) -> str | None:
    from pyspark.sql.types import BooleanType, NumericType

    # In parentheses: an expression that breaks off is refused as such, and does not take the name for its end.
    if fold.expr is not None:
        found = events.selectExpr(f"({fold.expr}) AS it").schema["it"].dataType
        if fold.is_numeric and not isinstance(found, NumericType):
            return (
                f"needs a number, and {fold.expr} is {found.simpleString()} in {subject}: make it one, as in "
                f'"cast({fold.expr} as double)"'
            )
    if fold.where is not None:
        found = events.selectExpr(f"({fold.where}) AS it").schema["it"].dataType
        if not isinstance(found, BooleanType):
            return (
                f"needs a condition, and {fold.where} is {found.simpleString()} in {subject}: write one that is true "
                "or false, such as \"status = 'PAID'\""
            )
    return None


def state_definition(declaration: State, rename: Callable[[str], str] = lambda text: text) -> str:
    """
    A name for what a state's rows mean: it changes with the key, a field, the order of fields, the reducer's code.

    `rename` is applied to what names fields of the contract.
    """
    parts = [declaration.key, *(f"{name}={rename(repr(fold))}" for name, fold in declaration.fields.items())]
    if declaration.order is not None:
        parts.append(f"order={rename(declaration.order)}")
    if declaration.reducer is not None:
        parts.append(f"reducer={declaration.reducer!r}")
    if declaration.scd2 is not None:
        parts.append(f"scd2={rename(declaration.scd2)}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def definition_of(declaration: Declaration, rename: Callable[[str], str] = lambda text: text) -> str | None:
    """
    What the stamps of a table say of its declaration; None where any declaration gives the same rows.

    `rename` is as for :func:`state_definition`.
    """
    if isinstance(declaration, History) and declaration.dedupe is not None:
        within = "" if declaration.dedupe_within is None else f"\nwithin={declaration.dedupe_within}"
        return hashlib.sha256(f"dedupe={rename(declaration.dedupe)}{within}".encode()).hexdigest()[:16]
    return state_definition(declaration, rename) if isinstance(declaration, State) else None


def check_definition(declaration: Declaration, stamp: Stamp, contract: Contract) -> None:
    """
    Raise :class:`TableError` where a table was built with other folds, key or reducer than are declared now.

    Folds that name a field of the contract by the alias that it had then are the same ones.
    """
    if stamp.definition == definition_of(declaration):
        return
    if _was_built_as(declaration, stamp.definition, contract.renamed):
        return
    built_with = "other fields than are declared now"
    if isinstance(declaration, State) and declaration.reducer is not None:
        built_with = "another reducer or other columns than are declared now"
    if isinstance(declaration, History):
        built_with = "another dedupe than is declared now"
    raise TableError(
        f"{declaration.table} was built with {built_with}: `fluvial run --rebuild {declaration.table}` builds it again "
        "from the log; or declare what is new under another name"
    )


def _was_built_as(declaration: Declaration, definition: str | None, renamed: Mapping[str, str]) -> bool:
    """Whether the definition is the declaration's with some fields under their older names."""
    older = {name: alias for alias, name in renamed.items()}  # of several aliases the one that was there last
    return bool(older) and definition == definition_of(
        declaration, lambda text: re.sub(r"\w+", lambda word: older.get(word[0], word[0]), text)
    )


def _no_events(spark: "SparkSession", contract: Contract) -> "DataFrame":
    from pyspark.sql import types

    columns = [
        *value_type(spark, contract).fields,
        types.StructField("_topic", types.StringType()),
        types.StructField("_partition", types.IntegerType()),
        types.StructField("_offset", types.LongType()),
        types.StructField("_timestamp", types.TimestampType()),
        types.StructField("_key", types.BinaryType()),
        types.StructField("_schema_id", types.IntegerType()),
        types.StructField("_tombstone", types.BooleanType()),
    ]
    return spark.createDataFrame([], types.StructType(columns))


def _aggregate(events: "DataFrame", fold: Fold) -> None:
    from pyspark.sql.functions import expr

    events.agg(expr(fold.partial()))


def sentence(error: Exception) -> str:
    """
    Spark's sentence on what is wrong, without its code and the plan.
    """
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    line = re.sub(r"^\[[\w.]+\]\s*", "", line)
    return re.sub(r"\s*SQLSTATE: \w+.*$", "", line)
