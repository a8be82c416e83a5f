"""
Confluent-framed Avro decoded inside the JVM: a zero byte, the schema id in four, then the Avro body.

Each record is decoded with the schema that it was written with and resolved to one reader schema, so that a batch may
mix versions. What does not decode is told from what does by a field of our own: the reader schema gets a boolean whose
default is true, so it is true in every decoded record and null in one that Spark's PERMISSIVE mode gave up on (Spark
gives such a record nulls in all fields, which a legitimate record may have too).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from fluvial.errors import FluvialError
from fluvial.spark.reader_schema import reader_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from fluvial.spark.newer_schemas import NewerSchemas

DECODED = "_decoded"
_HEADER_BYTES = 5
# The registry protocol's code for "no such subject".
_SUBJECT_NOT_FOUND = 40401


class ContractError(FluvialError):
    """
    A topic's contract is missing, or cannot be the rows of a table.
    """


class RegisteredSchema(Protocol):
    """
    One version of a subject.
    """

    @property
    def version(self) -> int:
        """
        Its number within the subject.
        """
        ...

    @property
    def id(self) -> int:
        """
        The id that a record's header carries.
        """
        ...

    @property
    def schema(self) -> str:
        """
        The schema's JSON.
        """
        ...


class SchemaSource(Protocol):
    """
    Where schemas come from; the registry's client is one.

    It promises nothing about schemas that are registered while a batch runs: ask after the batch's end is known.
    """

    def versions_of_subject(self, subject: str) -> Sequence[RegisteredSchema]:
        """
        Every version of a subject in ascending order, deleted ones as well; none where it is not registered.
        """
        ...

    def latest(self, subject: str) -> RegisteredSchema:
        """
        The newest version of a subject.
        """
        ...


@dataclass(frozen=True, slots=True)
class SchemaPoint:
    """
    The versions that a reader knew: `reader` was the one to read as, `newest` the highest number there was.
    """

    reader: int
    newest: int

    def as_pair(self) -> tuple[int, int]:
        """
        The two numbers, as they stand in a table's stamp.
        """
        return self.reader, self.newest


@dataclass(frozen=True, kw_only=True)
class Contract:
    """
    What the values of a topic look like: the schemas they were written with, and the one they are read as.

    `reader` is the newest version, laid over the ones before it (:mod:`fluvial.spark.reader_schema`); `declared` are
    the fields of the newest version alone. `versions` and `point` are of a contract that is registered.
    """

    subject: str
    writers: Mapping[int, str]
    reader_id: int
    reader: str
    declared: frozenset[str] | None = None
    versions: tuple[RegisteredSchema, ...] = ()
    point: SchemaPoint | None = None

    @cached_property
    def document(self) -> Mapping[str, Any]:
        """
        The reader schema, parsed.
        """
        parsed: dict[str, Any] = json.loads(self.reader)
        return parsed

    @property
    def key_field(self) -> str | None:
        """
        The field that the contract names as the record key's, by `"fluvial.key"`.
        """
        named = self.document.get("fluvial.key")
        return named if isinstance(named, str) else None

    @cached_property
    def field_names(self) -> tuple[str, ...]:
        """
        The names of the reader schema's fields, in its order.
        """
        return tuple(field["name"] for field in self.document["fields"])

    @cached_property
    def renamed(self) -> Mapping[str, str]:
        """
        The newest name of each field that once had another, by that other one.
        """
        return {alias: field["name"] for field in self.document["fields"] for alias in field.get("aliases", ())}

    def is_older_than(self, schema: tuple[int, int] | None) -> bool:
        """
        Whether a table whose stamp says `schema` was read with a version that is not known here.
        """
        return schema is not None and self.point is not None and schema[1] > self.point.newest

    def as_of(self, point: SchemaPoint) -> "Contract | None":
        """
        The contract as it was when no version above `point.newest` was registered; None where it is not known.
        """
        known = [each for each in self.versions if each.version <= point.newest]
        reader = next((each for each in known if each.version == point.reader), None)
        return None if reader is None else _contract(self.subject, known, reader)

    @classmethod
    def proposed(cls, subject: str, text: str) -> "Contract":
        """
        A contract that is not registered, as it would be read. Raises :class:`ContractError`.
        """
        check_record(subject, text)
        return cls(subject=subject, writers={0: text}, reader_id=0, reader=text)


def read_contract(schemas: SchemaSource, topic: str) -> Contract:
    """
    The contract of a topic's values, under the subject `<topic>-value`. Raises :class:`ContractError`.
    """
    subject = f"{topic}-value"
    try:
        versions = schemas.versions_of_subject(subject)
    except FluvialError as error:
        if getattr(error, "code", None) != _SUBJECT_NOT_FOUND:
            raise
        versions = ()
    if not versions:
        raise ContractError(
            f"no schema is registered for {subject}: register the contract of {topic} first (`fluvial schema register`)"
        )
    newest = schemas.latest(subject)
    check_record(subject, newest.schema)
    return _contract(subject, versions, newest)


def _contract(subject: str, versions: Sequence[RegisteredSchema], reader: RegisteredSchema) -> Contract:
    earlier = [each.schema for each in versions if each.version != reader.version and _is_record(each.schema)]
    return Contract(
        subject=subject,
        writers={each.id: each.schema for each in versions},
        reader_id=reader.id,
        reader=reader_schema([*earlier, reader.schema]),
        declared=frozenset(field["name"] for field in json.loads(reader.schema)["fields"]),
        versions=tuple(versions),
        point=SchemaPoint(reader.version, max(each.version for each in versions)),
    )


def _is_record(text: str) -> bool:
    parsed = json.loads(text)
    return isinstance(parsed, dict) and parsed.get("type") == "record"


def check_record(subject: str, text: str) -> None:
    """
    Raise :class:`ContractError` for a schema that cannot be the rows of a table.
    """
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise ContractError(f"the contract {subject} is no Avro schema: tables are made of Avro records") from error
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        raise ContractError(f"the contract {subject} is not a record: a table's columns are the fields of a record")
    taken = [field["name"] for field in parsed["fields"] if field["name"].startswith("_")]
    if taken:
        raise ContractError(
            f"the contract {subject} has a field {taken[0]}: names that start with an underscore are fluvial's columns"
        )


def decode(records: "DataFrame", contract: Contract, *, newer: "NewerSchemas | None" = None) -> "DataFrame":
    """
    The records of Spark's Kafka source as `value` (a struct of the contract's fields and `_decoded`) and their place.

    Columns: `value`, `_topic`, `_partition`, `_offset`, `_timestamp`, `_key`, `_schema_id`, `_raw`. `_schema_id` and
    `value` are null for a tombstone and for a record of no schema of the subject. With `newer`, records of versions
    that the contract did not have are resolved as well.
    """
    from pyspark.sql import functions as sql
    from pyspark.sql.avro.functions import from_avro

    reader = _reader_with_mark(contract)
    header = sql.substring("value", 1, _HEADER_BYTES)
    body = sql.expr(f"substring(value, {_HEADER_BYTES + 1})")
    value: Column | None = None
    schema_id: Column | None = None
    # The newest schema first: most records are of it.
    for identity in sorted(contract.writers, reverse=True):
        matches = header == sql.lit(b"\0" + identity.to_bytes(4, "big"))
        decoded = from_avro(body, contract.writers[identity], {"avroSchema": reader, "mode": "PERMISSIVE"})
        value = sql.when(matches, decoded) if value is None else value.when(matches, decoded)
        schema_id = sql.when(matches, identity) if schema_id is None else schema_id.when(matches, identity)
    assert value is not None
    assert schema_id is not None
    if newer is not None:
        known = [sql.lit(b"\0" + identity.to_bytes(4, "big")) for identity in contract.writers]
        is_newer = header.startswith(sql.lit(b"\0")) & (sql.length("value") >= _HEADER_BYTES) & ~header.isin(known)
        body = newer.translated(sql.when(is_newer, sql.col("value")))
        options = {"avroSchema": reader, "mode": "PERMISSIVE"}
        value = value.when(is_newer, from_avro(body, contract.reader, options))
        number = sql.expr("CAST(conv(hex(substring(value, 2, 4)), 16, 10) AS INT)")
        schema_id = schema_id.when(is_newer & body.isNotNull(), number)
    return records.select(
        value.alias("value"),
        sql.col("topic").alias("_topic"),
        sql.col("partition").alias("_partition"),
        sql.col("offset").alias("_offset"),
        sql.col("timestamp").alias("_timestamp"),
        sql.col("key").alias("_key"),
        schema_id.alias("_schema_id"),
        sql.col("value").alias("_raw"),
    )


def is_undecodable() -> str:
    """
    The SQL condition on :func:`decode`'s rows that holds for a record which must go to quarantine.
    """
    return f"_raw IS NOT NULL AND value.{DECODED} IS NULL"


def reason(contract: Contract) -> str:
    """
    The SQL expression that says of such a record why.
    """
    subject = contract.subject.replace("'", "\\'")
    return (
        f"CASE WHEN length(_raw) < {_HEADER_BYTES} OR substring(_raw, 1, 1) != X'00' "
        "THEN 'not framed: a value starts with a zero byte and a schema id' "
        f"WHEN _schema_id IS NULL THEN concat('schema id ', conv(hex(substring(_raw, 2, 4)), 16, 10), "
        f"' is none of {subject}') "
        "ELSE concat('the bytes do not decode with schema id ', _schema_id) END"
    )


def value_type(spark: "SparkSession", contract: Contract) -> "StructType":
    """
    The Spark type of the contract's rows, as :func:`decode` makes them, without the mark.
    """
    from pyspark.sql.avro.functions import from_avro
    from pyspark.sql.types import StructType

    frame = spark.sql("SELECT X'' AS value").select(
        from_avro("value", contract.reader, {"mode": "PERMISSIVE"}).alias("value")
    )
    found = frame.schema["value"].dataType
    assert isinstance(found, StructType)
    return found


def _reader_with_mark(contract: Contract) -> str:
    mark = {"name": DECODED, "type": "boolean", "default": True}
    return json.dumps({**contract.document, "fields": [*contract.document["fields"], mark]})
