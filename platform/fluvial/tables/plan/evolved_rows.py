"""
Rows of a table as a newer contract has them: `DataFrame -> DataFrame`, by a :class:`~fluvial.tables.plan.evolution`.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from fluvial.tables.plan.evolution import Column as EvolvedColumn
from fluvial.tables.plan.evolution import Default, Evolution, Items, Keep, Source, Struct, Symbols, Value

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

_NO_FIELDS = '{"type":"record","name":"Defaults","namespace":"fluvial","fields":[]}'


def evolved_rows(
    table: "DataFrame", evolution: Evolution, types: "StructType", *, own: Collection[str] = ()
) -> "DataFrame":
    """
    The table's rows under the newer contract, whose fields have these types; columns that are no field come last.

    `own` are columns that have a field's name and hold something else, as a compacted table's key does.
    """
    from pyspark.sql import functions as sql

    wanted = [column for column in evolution.columns if column.name not in own]
    gone = {*evolution.renamed, *(column.name for column in wanted)} - set(own)
    others = [name for name in table.columns if name not in gone]
    first = [name for name in others if name in own]
    return table.select(
        *(sql.col(f"`{name}`") for name in first),
        *(_column(column, types[column.name].dataType).alias(column.name) for column in wanted),
        *(sql.col(f"`{name}`") for name in others if name not in own),
    )


def cast_rows(table: "DataFrame", types: "StructType") -> "DataFrame":
    """
    The table's rows with the columns of these types.
    """
    from pyspark.sql import functions as sql

    return table.select(
        *(sql.col(f"`{field.name}`").cast(field.dataType.simpleString()).alias(field.name) for field in types)
    )


def _column(column: EvolvedColumn, wanted: "DataType") -> "Column":
    from pyspark.sql import functions as sql

    ids: dict[Source, list[int]] = {}
    for identity, source in sorted(column.sources.items()):
        ids.setdefault(source, []).append(identity)
    # A row of no schema is as one of the newest schema that the same column is stored of.
    alike = [source for source in ids if source.stored == column.stored and not isinstance(source.value, Default)]
    others = alike[-1] if alike else Source(column.stored, Keep())
    if column.stored is None:
        result = sql.lit(None).cast(wanted.simpleString())
    else:
        result = _value(sql.col(f"`{others.stored}`"), others.value, wanted)
    for source, some in ids.items():
        if source != others:
            value = None if source.stored is None else sql.col(f"`{source.stored}`")
            result = sql.when(sql.col("_schema_id").isin(some), _value(value, source.value, wanted)).otherwise(result)
    return result


def _value(value: "Column | None", becomes: Value, wanted: "DataType") -> "Column":
    from pyspark.sql import functions as sql
    from pyspark.sql.avro.functions import from_avro
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(becomes, Default):
        nothing = from_avro(sql.lit(b""), _NO_FIELDS, {"avroSchema": becomes.schema})
        return nothing.getField(becomes.name).cast(wanted.simpleString())
    assert value is not None
    match becomes:
        case Struct():
            assert isinstance(wanted, StructType)
            fields = [
                _value(
                    None if source.stored is None else value.getField(source.stored),
                    source.value,
                    wanted[name].dataType,
                ).alias(name)
                for name, source in becomes.fields
            ]
            return sql.when(value.isNotNull(), sql.struct(*fields)).cast(wanted.simpleString())
        case Items() if becomes.is_map:
            assert isinstance(wanted, MapType)
            of_values = wanted.valueType
            return sql.transform_values(value, lambda _key, each: _value(each, becomes.value, of_values))
        case Items():
            assert isinstance(wanted, ArrayType)
            of_items = wanted.elementType
            return sql.transform(value, lambda each: _value(each, becomes.value, of_items))
        case Symbols():
            return sql.when(value.isNull() | value.isin(*becomes.known), value).otherwise(sql.lit(becomes.default))
        case Keep():
            return value.cast(wanted.simpleString())
