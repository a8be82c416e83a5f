"""
History, compacted and state tables against a plain Python fold of the same records, over several batches.
"""

import random
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from log_topic import Schemas, Sent, Topic
from plain_fold import FIELDS, SCHEMA, plain_compacted, plain_state, random_events

from fluvial.config import Settings
from fluvial.delta import few_rows, row_swap, upkeep
from fluvial.delta.errors import TableError
from fluvial.delta.key_index import Digests
from fluvial.delta.log import TableLog
from fluvial.delta.saved_keys import NAME
from fluvial.delta.stamp import read_position
from fluvial.spark.warehouse import Warehouse, table_name_of
from fluvial.tables import Declaration, DeclarationError, compacted, history, last_non_null, state, sum_
from fluvial.tables.drive import runner
from fluvial.tables.drive.rebuild import rebuild
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.verify import verify
from fluvial.tables.plan import table_index, upserts
from fluvial.tables.plan.table_index import TableIndex, TableIndexes

pytestmark = pytest.mark.spark


def declarations(topic: Topic) -> tuple[Declaration, ...]:
    return (
        history(topic.name, name="readings"),
        compacted(topic.name, name="readings", key="id"),
        state("readings", topic=topic.name, key="id", fields=FIELDS),
    )


def check_history(spark: Any, topic: Topic) -> None:
    rows = spark.sql("SELECT * FROM history.readings ORDER BY _partition, _offset").collect()
    expected = [(partition, offset, record) for partition, offset, record in topic.in_order() if record.decodes]
    assert [(row._partition, row._offset) for row in rows] == [(partition, offset) for partition, offset, _ in expected]
    for row, (_, _, record) in zip(rows, expected, strict=True):
        assert row._topic == topic.name
        assert row._key == (None if record.key is None else bytearray(record.key.encode()))
        value = record.value or {}
        assert (row.kind, row.amount, row.weight) == (value.get("kind"), value.get("amount"), value.get("weight"))
        assert (row._schema_id is None) == (record.value is None)


def check_compacted(spark: Any, topic: Topic) -> None:
    columns = ("kind", "amount", "weight", "_partition", "_offset")
    found = {row.id: {name: row[name] for name in columns} for row in spark.table("compacted.readings").collect()}
    expected = {key: {name: row[name] for name in columns} for key, row in plain_compacted(topic).items()}
    assert found == expected


def check_state(spark: Any, topic: Topic) -> None:
    rows = spark.table("state.readings").collect()
    found = {row.id: {name: row[name] for name in FIELDS} for row in rows}
    assert len(rows) == len(found)
    assert found == plain_state(topic)


# In each run of the tests, MERGE has its turn where tables are adopted: test_spark_adoption.py.
@pytest.mark.parametrize(
    "way",
    ["index", "small", pytest.param("join", marks=pytest.mark.rota), pytest.param("MERGE", marks=pytest.mark.rota)],
)
def test_every_table_equals_a_plain_fold_after_every_batch(
    way: str, spark: Any, settings: Settings, schemas: Schemas, make_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "MERGE":
        monkeypatch.setattr(row_swap, "DELTA_VERSIONS", frozenset())
    if way == "small":
        # Spark neither looks for the rows of a small table nor writes those of a small batch.
        monkeypatch.delattr(upserts, "located")
        monkeypatch.delattr(upserts, "swap_rows")
    if way == "index":
        monkeypatch.setattr(few_rows, "FEW_ROWS_MAX", 0)
    if way == "join":
        monkeypatch.setattr(runner, "ONE_BATCH_RECORDS_MAX", 0)
    indexes = TableIndexes() if way == "index" else None
    if indexes is not None:
        # Small files are written together after each batch, so that the index has to follow that as well.
        monkeypatch.setattr(upkeep, "FILES_MAX", 1)
        monkeypatch.setattr(upkeep, "BATCHES_BETWEEN", 1)
        monkeypatch.setattr(table_index, "SAVED_MIN", 1)
    topic = make_topic(SCHEMA, partitions=3)
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    events = random_events(seed, 400, partitions=3)
    # The second finds keys by an index, the third by what was saved of one that followed OPTIMIZE.
    batches = 3 if way in {"index", "join"} else 2
    cuts = sorted(random.Random(seed).sample(range(1, 400), batches - 1))
    for start, end in zip([0, *cuts], [*cuts, 400], strict=True):
        topic.send(events[start:end])
        indexes = None if indexes is None else TableIndexes()
        for declaration in declarations(topic):
            result = materialize(declaration, settings, spark, schemas=schemas, indexes=indexes)
            assert result.offsets.keys() == {0, 1, 2}
            assert result.records_max == end - start
        check_history(spark, topic)
        check_compacted(spark, topic)
        check_state(spark, topic)
    for table in ("compacted.readings", "state.readings"):
        operations = [row.operation for row in spark.sql(f"DESCRIBE HISTORY {table}").collect()]
        once = "MERGE" if way == "MERGE" else "STREAMING UPDATE"
        assert [each for each in operations if each != "OPTIMIZE"] == [once] * (batches - 1) + ["WRITE"]
        if indexes is not None:
            assert "OPTIMIZE" in operations


@pytest.mark.parametrize("order", [pytest.param(None, marks=pytest.mark.rota), "at"])
def test_rows_of_a_state_have_their_position_if_asked(
    order: str | None, spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(SCHEMA, partitions=2)
    declaration = state(
        "placed", topic=topic.name, key="id", fields={"total": sum_("amount")}, order=order, with_position=True
    )
    events = random_events(random.randrange(1_000_000), 60, partitions=2)
    for start, end in ((0, 25), (25, 60)):
        topic.send(events[start:end])
        materialize(declaration, settings, spark, schemas=schemas, indexes=None)
    expected: dict[str, tuple[int, int]] = {}
    for partition, offset, record in topic.in_order():
        if record.key is not None and record.value is None:
            expected.pop(record.key, None)
        elif record.key is not None:
            expected[record.key] = (partition, offset)
    rows = spark.table("state.placed").collect()
    assert {row.id: (row._partition, row._offset) for row in rows} == expected
    assert all(row._updated_at is not None for row in rows)
    assert verify(declaration, settings, spark, schemas=schemas).is_exact


def test_a_second_run_with_nothing_new_makes_no_commit(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(SCHEMA)
    topic.send(random_events(3, 20, partitions=1))
    for declaration in declarations(topic):
        first = materialize(declaration, settings, spark, schemas=schemas)
        again = materialize(declaration, settings, spark, schemas=schemas)
        assert (first.skipped, first.version_before, first.version_after) == (False, None, 0)
        assert (again.skipped, again.version_before, again.version_after) == (True, 0, 0)


def test_an_empty_topic_makes_empty_tables_with_the_columns_of_its_contract(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(SCHEMA, partitions=2)
    for declaration in declarations(topic):
        assert materialize(declaration, settings, spark, schemas=schemas).rows == 0
    assert spark.table("history.readings").columns == [
        *("kind", "amount", "weight", "at"),
        *("_topic", "_partition", "_offset", "_timestamp", "_key", "_schema_id"),
    ]
    assert spark.table("compacted.readings").columns[:5] == ["id", "kind", "amount", "weight", "at"]
    assert spark.table("state.readings").columns == ["id", *FIELDS, "_fold"]
    topic.send(random_events(4, 30, partitions=2))
    for declaration in declarations(topic):
        materialize(declaration, settings, spark, schemas=schemas)
    check_history(spark, topic)
    check_compacted(spark, topic)
    check_state(spark, topic)


def test_times_are_instants_in_utc(spark: Any, settings: Settings, schemas: Schemas, make_topic: Any) -> None:
    topic = make_topic(SCHEMA)
    moment = datetime(2013, 7, 4, 12, 30, tzinfo=UTC)
    value = {"kind": "up", "amount": 1, "weight": None, "at": int(moment.timestamp() * 1000)}
    topic.send([Sent(key="a", value=value)])
    materialize(history(topic.name, name="readings"), settings, spark, schemas=schemas)
    row = spark.sql("SELECT typeof(at) AS type, CAST(at AS STRING) AS at FROM history.readings").collect()[0]
    assert (row["type"], row["at"]) == ("timestamp", "2013-07-04 12:30:00")


def test_the_numbers_of_a_run(spark: Any, settings: Settings, schemas: Schemas, make_topic: Any) -> None:
    topic = make_topic(SCHEMA)
    value = {"kind": "up", "amount": 1, "weight": None, "at": 0}
    table = compacted(topic.name, name="readings", key="id")
    topic.send([Sent(key=key, value=value) for key in ("a", "b", "b", "c")])
    lines: list[str] = []
    first = materialize(table, settings, spark, schemas=schemas, progress=lines.append)
    assert (first.rows, first.records_max, dict(first.offsets)) == (3, 4, {0: (0, 4)})
    assert any("4 records" in line for line in lines)
    # One key gone, one changed, one new.
    topic.send([Sent(key="a"), Sent(key="b", value=value), Sent(key="d", value=value)])
    second = materialize(table, settings, spark, schemas=schemas)
    assert (second.rows, dict(second.offsets)) == (3, {0: (4, 7)})
    assert (second.version_before, second.version_after) == (0, 1)
    assert second.kind == "compacted"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"x": sum_("amuont")}, "amuont"),
        ({"x": sum_("kind")}, "needs a number, and kind is string"),
        ({"x": last_non_null("amount +")}, "field x"),
        ({"x": last_non_null("amount +")}, "Syntax error at or near"),
        ({"x": last_non_null("amount", "amount <")}, "Syntax error at or near"),
        ({"x": last_non_null("amount", "kind")}, "needs a condition, and kind is string"),
    ],
)
def test_a_fold_that_does_not_fit_the_contract_is_refused_before_anything_is_read(
    fields: Any, said: str, spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(SCHEMA)
    with pytest.raises(DeclarationError) as raised:
        materialize(state("bad", topic=topic.name, key="id", fields=fields), settings, spark, schemas=schemas)
    assert said in str(raised.value)
    assert topic.subject in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_contract_may_name_the_key(spark: Any, settings: Settings, schemas: Schemas, make_topic: Any) -> None:
    topic = make_topic({**SCHEMA, "fluvial.key": "kind"})
    topic.send([Sent(key="up", value={"kind": "up", "amount": 1, "weight": None, "at": 0})])
    materialize(compacted(topic.name, name="readings"), settings, spark, schemas=schemas)
    assert spark.table("compacted.readings").columns[:3] == ["kind", "amount", "weight"]
    with pytest.raises(DeclarationError, match='amount is another field: write key="kind"'):
        materialize(compacted(topic.name, name="other", key="amount"), settings, spark, schemas=schemas)
    silent = make_topic(SCHEMA)
    with pytest.raises(DeclarationError, match="amount is int"):
        materialize(compacted(silent.name, name="other", key="amount"), settings, spark, schemas=schemas)


@pytest.mark.rota
def test_a_record_without_the_contracts_key_stops_all_but_the_history(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic({**SCHEMA, "fluvial.key": "kind"})
    value = {"kind": "up", "amount": 1, "weight": None, "at": 0}
    total = {"total": sum_("amount")}
    of_entities = (
        compacted(topic.name, name="readings", key="kind"),
        state("readings", topic=topic.name, key="kind", fields=total),
        state("versions", topic=topic.name, key="kind", fields=total, scd2=True),
    )
    topic.send([Sent(key="up", value=value)])
    for declaration in of_entities[:2]:  # the third meets it in its first batch
        materialize(declaration, settings, spark, schemas=schemas)
    # What does not decode is put aside and stops nothing.
    topic.send([Sent(key="up", raw=b"bad"), Sent(key=None, value=value), Sent(key="up", value=value)])
    said = (
        rf"the record of {topic.name}-0 at offset 2 has no key, and by {topic.subject} the key is kind .* send the key"
    )
    for declaration, version in zip(of_entities, (0, 0, None), strict=True):
        with pytest.raises(TableError, match=said):
            materialize(declaration, settings, spark, schemas=schemas)
        path = Warehouse.at(settings.warehouse).path(declaration.table)
        assert TableLog(spark, path).newest_version() == version, "nothing of the batch was committed"
    materialize(history(topic.name, name="readings"), settings, spark, schemas=schemas)
    assert [row._key is None for row in spark.table("history.readings").orderBy("_offset").collect()] == [0, 1, 0]

    # As the message says: a table may put them aside. They are in quarantine once, whoever meets them first.
    aside = [replace(declaration, keyless="quarantine") for declaration in of_entities]
    results = [materialize(declaration, settings, spark, schemas=schemas) for declaration in aside]
    assert [result.quarantined for result in results[1:]] == [0, 0]
    assert [row.total for row in spark.table("state.readings").collect()] == [2]
    found = spark.table(f"quarantine.{table_name_of(topic.name)}").collect()
    assert {row._offset: row._reason for row in found}[2] == "no key"
    assert sorted(row._offset for row in found) == [1, 2]
    assert all(verify(declaration, settings, spark, schemas=schemas).is_exact for declaration in aside[:2])

    # Without the mark in the contract, such records are left out.
    schemas.register(topic.subject, {**SCHEMA, "doc": "A record without a key is of no entity."})
    for declaration in of_entities:
        materialize(declaration, settings, spark, schemas=schemas)
    assert [row._offset for row in spark.table("compacted.readings").collect()] == [3]
    assert [row.total for row in spark.table("state.readings").collect()] == [2]
    assert [row.total for row in spark.sql("SELECT * FROM state.versions WHERE is_current").collect()] == [2]


def test_a_key_that_is_no_text_stops_all_but_the_history(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    """As the keys of Kafka's LongSerializer are: half of their bytes would be no text for any reader of the table."""
    topic = make_topic(SCHEMA)
    value = {"kind": "up", "amount": 1, "weight": None, "at": 0}
    of_keys = (
        compacted(topic.name, name="readings", key="id"),
        state("readings", topic=topic.name, key="id", fields={"total": sum_("amount")}),
    )
    indexes = TableIndexes()
    topic.send([Sent(key="é", value=value)])
    for declaration in of_keys:
        materialize(declaration, settings, spark, schemas=schemas, indexes=indexes)
    topic.send([Sent(key="é", value=value), Sent(key=None, binary=b"\0\0\0\0\0\0\0\xff", value=value)])
    said = rf"the key of the record of {topic.name}-0 at offset 2 is no UTF-8 text"
    for declaration in of_keys:
        with pytest.raises(TableError, match=said):
            materialize(declaration, settings, spark, schemas=schemas, indexes=indexes)
        path = Warehouse.at(settings.warehouse).path(declaration.table)
        assert TableLog(spark, path).newest_version() == 0, "nothing of the batch was committed"
    materialize(history(topic.name, name="readings"), settings, spark, schemas=schemas)
    assert spark.table("history.readings").count() == 3

    aside = [replace(declaration, keyless="quarantine") for declaration in of_keys]
    for declaration, quarantined in zip(aside, (1, 0), strict=True):
        result = materialize(declaration, settings, spark, schemas=schemas, indexes=indexes)
        assert result.quarantined == quarantined
        assert verify(declaration, settings, spark, schemas=schemas).is_exact
    assert [(row.id, row.total) for row in spark.table("state.readings").collect()] == [("é", 2)]
    (found,) = spark.table(f"quarantine.{table_name_of(topic.name)}").collect()
    assert (found._offset, found._reason) == (2, "a key that is no text")
    # A tombstone of such a key, and a record without any, which no mark in the contract forbids.
    topic.send([Sent(key=None, binary=b"\xc3"), Sent(key=None, value=value), Sent(key="é", value=value)])
    for declaration in aside:
        materialize(declaration, settings, spark, schemas=schemas, indexes=indexes)
        assert verify(declaration, settings, spark, schemas=schemas).is_exact
    assert [(row.id, row._offset) for row in spark.table("compacted.readings").collect()] == [("é", 5)]


def test_skipped_records_stay_out_of_the_table_and_of_its_rebuild(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic({**SCHEMA, "fluvial.key": "kind"})
    value = {"kind": "up", "amount": 1, "weight": None, "at": 0}
    declaration = state("skipping", topic=topic.name, key="kind", fields={"total": sum_("amount")})
    topic.send([Sent(key="up", value=value), Sent(key=None, value=value), Sent(key="up", value=value)])
    with pytest.raises(TableError, match=rf"fluvial run state.skipping --skip {topic.name}:0=1`"):
        materialize(declaration, settings, spark, schemas=schemas)
    materialize(declaration, settings, spark, schemas=schemas, skip={0: [1]})
    topic.send([Sent(key="up", value=value)])
    materialize(declaration, settings, spark, schemas=schemas)
    with pytest.raises(TableError, match=f"fluvial run --rebuild state.skipping --skip {topic.name}:0=0`"):
        materialize(declaration, settings, spark, schemas=schemas, skip={0: [0]})
    with pytest.raises(TableError, match="ends at 4"):
        materialize(declaration, settings, spark, schemas=schemas, skip={0: [4]})

    def holds(total: int, skipped: dict[int, tuple[int, ...]]) -> None:
        assert [row.total for row in spark.table("state.skipping").collect()] == [total]
        log = TableLog(spark, Warehouse.at(settings.warehouse).path(declaration.table))
        stamp = read_position(log, declaration.table).stamp
        assert stamp is not None
        assert stamp.skipped == skipped
        assert verify(declaration, settings, spark, schemas=schemas).is_exact

    holds(3, {0: (1,)})
    rebuild(declaration, settings, spark, schemas=schemas, skip={0: [0]})
    holds(2, {0: (0, 1)})


def test_an_index_is_the_same_however_it_is_read(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the files; by Spark where these lie elsewhere, and in parts: ten million keys are more than one answer."""
    topic = make_topic(SCHEMA)
    table = compacted(topic.name, name="parts")
    for numbers in (range(50), range(0, 50, 3)):
        topic.send(
            [
                Sent(key=f"key {number}", value={"kind": "up", "amount": number, "weight": None, "at": 0})
                for number in numbers
            ]
        )
        # By a join, so that rows are marked in the first file.
        materialize(table, settings, spark, schemas=schemas)
    path = Warehouse.at(settings.warehouse).path(table.table)
    version = TableLog(spark, path).newest_version()
    assert version == 1
    digests = Digests.of([f"key {number}" for number in range(51)])

    def places() -> list[Any]:
        index = TableIndexes().of(path, "key", placed=True)
        assert index.load(spark, version)
        found = index.find(digests)
        files = {name: rows.tolist() for name, rows in sorted(index.rows_by_file(found).items())}
        return [files, found.row.tolist(), found.partition.tolist(), found.offset.tolist()]

    whole = places()
    assert len(whole[0]) > 1
    assert sum(map(len, whole[0].values())) == 50
    monkeypatch.setattr(table_index, "KEYS_A_PART", 7)
    assert places() == whole
    monkeypatch.setattr(table_index, "data_files", lambda *_, **__: None)
    assert places() == whole
    monkeypatch.undo()
    # From what was saved, with nothing read again; and from the files again where that is torn, or nothing.
    monkeypatch.setattr(table_index, "SAVED_MIN", 1)
    assert places() == whole
    saved = Path(path, NAME)
    with monkeypatch.context() as patch:
        patch.setattr(TableIndex, "_enter", lambda *_: pytest.fail("a file was read again"))
        assert places() == whole
    saved.write_bytes(saved.read_bytes()[:-3])
    assert places() == whole
    monkeypatch.undo()
    spark.read.format("delta").load(path).where("key = 'key 7'").write.format("delta").mode("append").save(path)
    with pytest.raises(ValueError, match="two rows"):
        TableIndexes().of(path, "key", placed=True).load(spark, version + 1)
