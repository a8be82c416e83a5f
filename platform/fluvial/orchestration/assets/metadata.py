"""What a run says of itself on the Dagster page."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import dagster as dg

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from fluvial.tables.plan.result import RunResult

OFFSET_COLUMNS = dg.TableSchema(
    columns=[
        dg.TableColumn("partition", "int"),
        dg.TableColumn("start", "long", description="first offset read"),
        dg.TableColumn("end", "long", description="first offset left for the next run"),
        dg.TableColumn("records", "long"),
    ]
)


def run_metadata(result: "RunResult", *, lag: int | None) -> dict[str, Any]:
    """
    Return the numbers of one run as Dagster metadata.

    `lag` is how many records the log held beyond the table when the run ended; None (the log did not answer, or the
    table reads none) leaves it out.
    """
    metadata: dict[str, Any] = {
        "skipped": result.skipped,
        "rows": result.rows,
        "quarantined": result.quarantined,
        "bytes": result.bytes,
        "seconds": round(result.seconds, 3),
    }
    if result.lag_before is not None:
        metadata["lag_before"] = result.lag_before
    if result.late_rows is not None:
        metadata["late_rows"] = result.late_rows
    if result.skipped:
        metadata["note"] = "no new records: no commit was made"
    if result.version_before is not None:
        metadata["delta_version_before"] = result.version_before
    if result.version_after is not None:
        metadata["delta_version"] = result.version_after
    if result.offsets:
        metadata["offsets"] = offsets_table(result.offsets)
    if result.inputs:
        metadata["inputs"] = dict(sorted(result.inputs.items()))
    if lag is not None:
        metadata["lag"] = lag
    return metadata


def offsets_table(offsets: Mapping[int, tuple[int, int]]) -> dg.TableMetadataValue:
    """Show the range that was read of each partition."""
    return dg.MetadataValue.table(
        records=[
            dg.TableRecord({"partition": partition, "start": start, "end": end, "records": end - start})
            for partition, (start, end) in sorted(offsets.items())
        ],
        schema=OFFSET_COLUMNS,
    )


def plain_columns(schema: "StructType") -> tuple[Mapping[str, Any], ...]:
    """Turn the schema of a Spark table into plain values, which may come from another process."""
    return tuple(
        {
            "name": field.name,
            "type": field.dataType.simpleString(),
            "comment": field.metadata.get("comment"),
            "nullable": field.nullable,
        }
        for field in schema.fields
    )


def column_schema(
    columns: Iterable[Mapping[str, Any]], described: Mapping[str, str] = MappingProxyType({})
) -> dg.TableSchema:
    """Turn columns as `plain_columns` gives them into what Dagster shows; those without a comment as `described`."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                column["name"],
                column["type"],
                description=column["comment"] or described.get(column["name"]),
                constraints=dg.TableColumnConstraints(nullable=column["nullable"]),
            )
            for column in columns
        ]
    )


def plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Turn Dagster metadata values back into plain Python ones: numbers, texts, lists of rows."""
    return {name: _plain_value(value) for name, value in metadata.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, dg.TableMetadataValue):
        return [dict(record.data) for record in value.records]
    if isinstance(value, dg.TableSchemaMetadataValue):
        return {column.name: column.type for column in value.schema.columns}
    return getattr(value, "value", value)
