"""
Topics as decoded frames in anyone's own Spark job: the records of a range, or a stream of them.

The columns are the fields of the topic's contract, then where a record stands in the log: `_topic`, `_partition`,
`_offset`, `_timestamp`, `_key`, `_schema_id`. A tombstone has null in all fields. The session needs the jars of Spark's
Kafka source and of Avro, which :func:`fluvial.spark.session.build_session` gives it.
"""

import json
import logging
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Literal, get_args

from fluvial.config import Settings, load_settings
from fluvial.spark.avro import Contract, ContractError, decode, is_undecodable, read_contract, reason
from fluvial.spark.kafka import Span, TopicBounds, TopicError, read_span, topic_bounds
from fluvial.spark.newer_schemas import NewerSchemas, announce_newer
from fluvial.spark.offset_times import cut_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Where = Literal["earliest", "latest"] | datetime | Mapping[int, int]
"""A place in a topic: an end of it, the first records that are not earlier, or an offset for each partition."""
Undecodable = Literal["fail", "drop"]
"""What a record that is not of the contract does to the job: stop it with a line that says where, or nothing."""

_PLACE = ("_topic", "_partition", "_offset", "_timestamp", "_key", "_schema_id")
_LOG = logging.getLogger(__name__)


def read_topic(
    spark: "SparkSession",
    topic: str,
    *,
    start: Where = "earliest",
    end: Where = "latest",
    undecodable: Undecodable = "fail",
    settings: Settings | None = None,
) -> "DataFrame":
    """
    The records of a topic from `start` to before `end`, as they are when this is called; nothing is read yet.

    Each record is resolved to the newest version of the contract. Nothing of an open transaction is read. `settings`
    are those of `fluvial.toml` and the environment. Raises :class:`~fluvial.spark.kafka.TopicError` for a topic or
    offset that is not there, :class:`~fluvial.spark.avro.ContractError` for a topic without a contract.
    """
    settings = settings or load_settings()
    _check(topic, undecodable)
    bounds = topic_bounds(settings.cluster, topic)
    starts, ends = (_offsets(settings, bounds, where, role) for where, role in ((start, "start"), (end, "end")))
    ranges = {partition: (at, max(at, ends[partition])) for partition, at in starts.items()}
    # After the ends are known, so that every record before them has its schema here.
    with settings.registry.client() as schemas:
        contract = read_contract(schemas, topic)
    records = read_span(spark, settings.cluster, Span(topic=topic, ranges=ranges))
    return _rows(decode(records, contract), contract, undecodable)


def stream_topic(
    spark: "SparkSession",
    topic: str,
    *,
    start: Where = "earliest",
    undecodable: Undecodable = "fail",
    records_max: int | None = None,
    settings: Settings | None = None,
) -> "DataFrame":
    """
    The records of a topic as a stream: a frame for `writeStream`, of which each batch has at most `records_max`.

    `start` is where a query without a checkpoint begins. The columns are those of the contract as it is now, for as
    long as the query runs: a record of a newer version is resolved to them, its schema taken from the registry where it
    is read. A column that only the newer version has is announced in the log of this module, and is there when the
    query is started again. Raises as :func:`read_topic` does.
    """
    settings = settings or load_settings()
    _check(topic, undecodable)
    bounds = topic_bounds(settings.cluster, topic)
    with settings.registry.client() as schemas:
        contract = read_contract(schemas, topic)
    if start in ("earliest", "latest"):
        offsets = str(start)
    else:
        found = _offsets(settings, bounds, start, "start")
        offsets = json.dumps({topic: {str(partition): at for partition, at in sorted(found.items())}})
    reader = (
        spark.readStream.format("kafka")
        .options(**settings.cluster.spark_options())
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topic)
        .option("startingOffsets", offsets)
        .option("failOnDataLoss", "true")
    )
    if records_max is not None:
        reader = reader.option("maxOffsetsPerTrigger", str(records_max))
    newer = NewerSchemas(endpoint=settings.registry, subject=contract.subject, reader=contract.reader)
    announce_newer(spark, contract, settings.registry, _LOG.warning)
    return _rows(decode(reader.load(), contract, newer=newer), contract, undecodable, is_stream=True)


def _check(topic: str, undecodable: str) -> None:
    if undecodable not in get_args(Undecodable):
        raise ContractError(f'{topic}: undecodable is {undecodable!r}: write undecodable="fail" or undecodable="drop"')


def _offsets(settings: Settings, bounds: TopicBounds, where: Where, role: str) -> Mapping[int, int]:
    """The offset of each partition that a place stands for."""
    topic = bounds.topic
    match where:
        case "earliest":
            return bounds.starts
        case "latest":
            return bounds.ends
        case datetime():
            if where.tzinfo is None:
                raise TopicError(
                    f"{topic}: {role} is {where}, which is of no time zone: write datetime(…, tzinfo=timezone.utc)"
                )
            return cut_topic(settings.cluster, topic, [int(where.timestamp() * 1000)]).at[0]
        case Mapping():
            return {**(bounds.starts if role == "start" else bounds.ends), **_checked(bounds, where, role)}
        case _:
            raise TopicError(
                f'{topic}: {role} is {where!r}: write "earliest", "latest", a datetime or {{partition: offset}}'
            )


def _checked(bounds: TopicBounds, offsets: Mapping[int, int], role: str) -> Mapping[int, int]:
    for partition, offset in offsets.items():
        if partition not in bounds.ends:
            raise TopicError(
                f"{bounds.topic}: {role} names partition {partition}, and there are {len(bounds.ends)}, from 0"
            )
        if not bounds.starts[partition] <= offset <= bounds.ends[partition]:
            raise TopicError(
                f"{bounds.topic}: {role} is offset {offset} of partition {partition}, which holds "
                f"{bounds.starts[partition]} to {bounds.ends[partition]}: read within them"
            )
    return offsets


def _rows(
    decoded: "DataFrame", contract: Contract, undecodable: Undecodable, *, is_stream: bool = False
) -> "DataFrame":
    """The fields of the contract and the place of each record."""
    from pyspark.sql import functions as sql

    if undecodable == "drop":
        decoded = decoded.where(f"NOT ({is_undecodable()})")
    else:
        decoded = decoded.withColumn("value", sql.expr(_guarded(contract, is_stream=is_stream)))
    fields = [f"value.`{name}` AS `{name}`" for name in contract.field_names]
    return decoded.selectExpr(*fields, *_PLACE)


def _guarded(contract: Contract, *, is_stream: bool) -> str:
    """The value, or an error where it does not decode. It is in the value, so that no field can be read without it."""
    mend = 'repair what sends it, or leave such records out with undecodable="drop"'
    if is_stream:
        mend += "; one of a version whose values these columns cannot hold is read once the query is started again"
    words = f"'a record does not decode: ', _topic, '-', _partition, ' at offset ', _offset, ', ', {reason(contract)}"
    text = f"concat({words}, ': {mend}')"
    return f"CASE WHEN {is_undecodable()} THEN raise_error({text}) ELSE value END"
