"""
A table written back to a topic: what a reader of committed records has is the table, each change once.
"""

import io
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from log_topic import Schemas, Sent, Topic

from fluvial.config import Settings
from fluvial.delta.stamp import TableError
from fluvial.spark.kafka import TopicError
from fluvial.tables import Declaration, Publication, compacted, count, mean, pipeline, publish, state, sum_
from fluvial.tables.declare.declarations import DeclarationError
from fluvial.tables.drive.rebuild import rebuild
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.verify import verify
from fluvial.tables.publishing.run import PublicationRun
from fluvial.tables.publishing.table import DeltaSource
from fluvial.tables.publishing.transactions import VERSION_HEADER

pytestmark = pytest.mark.spark

SCHEMA = {
    "type": "record",
    "name": "Payment",
    "fields": [{"name": "kind", "type": "string"}, {"name": "amount", "type": ["null", "long"], "default": None}],
}


def paid(key: str, amount: int | None, partition: int = 0) -> Sent:
    return Sent(key=key, value={"kind": "paid", "amount": amount}, partition=partition)


def accounts(topic: Topic) -> Declaration:
    fields = {"payments": count(), "paid": sum_("amount"), "mean": mean("amount")}
    return state("accounts", topic=topic.name, key="account", fields=fields)


@dataclass(frozen=True)
class Seen:
    """A record as a reader has it."""

    key: str
    value: dict[str, Any] | None
    version: int


def read(settings: Settings, schemas: Schemas, topic: str) -> list[Seen]:
    """The committed records of a topic, its only partition in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": settings.bootstrap_servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    known = {each.id: each.schema for each in schemas.versions_of_subject(f"{topic}-value")}
    seen = []
    try:
        partitions = set(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
        while partitions:
            message = consumer.poll(30)
            assert message is not None, "the end of the topic is not reached"
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                partitions.discard(message.partition())
                continue
            body = message.value()
            value = None
            if body is not None:
                schema = json.loads(known[int.from_bytes(body[1:5], "big")])
                value = fastavro.schemaless_reader(io.BytesIO(body[5:]), fastavro.parse_schema(schema))
            seen.append(Seen(message.key().decode(), value, int(dict(message.headers())[VERSION_HEADER])))
    finally:
        consumer.close()
    return seen


@pytest.fixture
def out(settings: Settings, make_topic: Any) -> str:
    """The name of a topic that is there and empty; it is deleted after the test."""
    name: str = make_topic(config={"cleanup.policy": "compact"}).name
    return name


def test_each_change_of_a_state_is_published_once(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any, out: str
) -> None:
    topic = make_topic(SCHEMA, partitions=2)
    table, publication = accounts(topic), publish("state.accounts", topic=out, key="account")
    with pytest.raises(TableError, match=r"which does not exist: run it first \(`fluvial run state.accounts`\)"):
        materialize(publication, settings, spark, schemas=schemas)
    topic.send([paid("a", 1), paid("b", 2), paid("c", None), paid("d", 4, partition=1)])
    materialize(table, settings, spark, schemas=schemas)
    first = materialize(publication, settings, spark, schemas=schemas)
    assert (first.skipped, first.rows, first.version_before, first.version_after) == (False, 4, None, 0)
    assert first.inputs == {"state.accounts": 0}
    # Two batches, an ended entity, one that was ended and began again, and a rewriting that changes nothing.
    topic.send([paid("a", 10), Sent(key="b"), Sent(key="c"), paid("c", 3)])
    materialize(table, settings, spark, schemas=schemas)
    topic.send([paid("a", 100), paid("e", 5)])
    materialize(table, settings, spark, schemas=schemas)
    spark.sql("OPTIMIZE state.accounts").collect()
    second = materialize(publication, settings, spark, schemas=schemas)
    assert (second.rows, second.version_before, second.version_after) == (4, 0, 3)
    assert materialize(publication, settings, spark, schemas=schemas).skipped
    seen = read(settings, schemas, out)
    assert {each.key: each.value for each in seen[:4]} == {
        "a": {"account": "a", "payments": 1, "paid": 1, "mean": 1.0},
        "b": {"account": "b", "payments": 1, "paid": 2, "mean": 2.0},
        "c": {"account": "c", "payments": 1, "paid": 0, "mean": None},
        "d": {"account": "d", "payments": 1, "paid": 4, "mean": 4.0},
    }
    assert {each.key: each.value and each.value["paid"] for each in seen[4:]} == {"a": 111, "b": None, "c": 3, "e": 5}
    assert next(each for each in seen[4:] if each.key == "b").value is None
    assert [each.version for each in seen] == [0] * 4 + [3] * 4
    proof = verify(publication, settings, spark, schemas=schemas)
    assert (proof.is_exact, proof.rows, proof.version) == (True, 4, 3)
    # Others may go on from it as from any topic.
    again = compacted(out, name="copies", key="account")
    materialize(again, settings, spark, schemas=schemas)
    columns = ["account", "payments", "paid", "mean"]
    assert (
        spark.table("compacted.copies").select(columns).orderBy("account").collect()
        == spark.table("state.accounts").select(columns).orderBy("account").collect()
    )


@pytest.mark.rota
def test_a_restored_and_a_rebuilt_table_are_published_by_what_differs(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any, out: str
) -> None:
    topic = make_topic(SCHEMA)
    table, publication = accounts(topic), publish("state.accounts", topic=out, key="account")
    for amount in (1, 2):
        topic.send([paid("a", amount), paid(f"only {amount}", amount)])
        materialize(table, settings, spark, schemas=schemas)
        materialize(publication, settings, spark, schemas=schemas)
    spark.sql("RESTORE TABLE state.accounts TO VERSION AS OF 0").collect()
    assert materialize(publication, settings, spark, schemas=schemas).rows == 2
    assert [(each.key, each.value and each.value["paid"]) for each in sorted_tail(settings, schemas, out, 2)] == [
        ("a", 1),
        ("only 2", None),
    ]
    rebuild(table, settings, spark, schemas=schemas)
    assert materialize(publication, settings, spark, schemas=schemas).rows == 2
    assert verify(publication, settings, spark, schemas=schemas).is_exact
    # Removed and made again, its versions are others under the same numbers.
    spark.sql("DROP TABLE state.accounts")
    remove(spark, f"{settings.warehouse}/state/accounts")
    topic.send([paid("a", 4)])
    materialize(table, settings, spark, schemas=schemas)
    with pytest.raises(TableError, match="removed and recreated"):
        materialize(publication, settings, spark, schemas=schemas)
    assert rebuild(publication, settings, spark, schemas=schemas).rows == 1
    assert sorted_tail(settings, schemas, out, 1)[0].value == {"account": "a", "payments": 3, "paid": 7, "mean": 7 / 3}
    assert verify(publication, settings, spark, schemas=schemas).is_exact
    assert materialize(publication, settings, spark, schemas=schemas).skipped


def sorted_tail(settings: Settings, schemas: Schemas, topic: str, records: int) -> list[Seen]:
    return sorted(read(settings, schemas, topic)[-records:], key=lambda each: each.key)


def remove(spark: Any, path: str) -> None:
    import shutil

    shutil.rmtree(path)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


# That it is gone on with wherever it was killed is shown without Spark: test_publishing_transactions.py.
@pytest.mark.rota
def test_a_version_of_many_changes_takes_several_transactions_and_is_gone_on_with(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(SCHEMA)
    publication = publish("state.accounts", topic=out, key="account")
    keys = [f"{number:03}é" for number in range(40)]
    topic.send([paid(key, 1) for key in keys])
    materialize(accounts(topic), settings, spark, schemas=schemas)

    class Killed(BaseException):
        pass

    def run() -> Any:
        source = DeltaSource(declaration=publication, settings=settings, spark=spark, schemas=schemas)
        return PublicationRun(declaration=publication, settings=settings, source=source, records_max=15).run()

    from fluvial.tables.publishing.transactions import Publisher

    said: list[str] = []
    real = Publisher._say

    def killed_at_the_second(self: Any, progress: Any) -> None:
        said.append(progress.as_json())
        if len(said) == 3:  # the claim, 15 records, 30 records
            raise Killed
        real(self, progress)

    with monkeypatch.context() as patch:
        patch.setattr(Publisher, "_say", killed_at_the_second)
        with pytest.raises(Killed):
            run()
    assert [each.key for each in read(settings, schemas, out)] == keys[:15]
    # The table has moved on before the rest of the version is published.
    topic.send([paid(keys[0], 1), paid(keys[-1], 1)])
    materialize(accounts(topic), settings, spark, schemas=schemas)
    assert run().rows == 25 + 2
    seen = read(settings, schemas, out)
    assert [each.key for each in seen[:40]] == keys
    assert sorted(each.key for each in seen[40:]) == [keys[0], keys[-1]]
    assert verify(publication, settings, spark, schemas=schemas).is_exact


@pytest.mark.rota
def test_marts_are_published_where_they_have_one_row_a_key(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any, out: str
) -> None:
    topic = make_topic(SCHEMA)
    source = accounts(topic)

    @pipeline(name="by_count", inputs=["state.accounts"], version="1")
    def by_count(rows: Any) -> Any:
        return rows.selectExpr(
            "payments AS n", "account", "map('paid', paid) AS sums", "cast(paid AS decimal(9,2)) AS d"
        )

    def publish_all(publication: Publication) -> Any:
        for each in (source, by_count, publication):
            result = materialize(each, settings, spark, schemas=schemas)
        return result

    topic.send([paid("a", 1), paid("b", 2), paid("b", 3)])
    publication = publish("marts.by_count", topic=out, key="n")
    assert publish_all(publication).rows == 2
    topic.send([paid("a", 1), paid("a", 1)])
    assert publish_all(publication).rows == 2
    seen = read(settings, schemas, out)
    assert [(each.key, each.value and each.value["account"]) for each in seen[2:]] in (
        [("1", None), ("3", "a")],
        [("3", "a"), ("1", None)],
    )
    assert next(each.value for each in seen if each.key == "2")["sums"] == {"paid": 5}
    assert verify(publication, settings, spark, schemas=schemas).is_exact
    topic.send([paid("b", 1)])
    with pytest.raises(TableError, match=r"marts.by_count has 2 rows of key 3"):
        publish_all(publication)
    assert read(settings, schemas, out) == seen
    other = publish("state.accounts", topic=make_topic().name, key="paid")
    with pytest.raises(DeclarationError, match='publish it by key="account"'):
        materialize(other, settings, spark, schemas=schemas)


@pytest.mark.rota
def test_a_version_that_vacuum_took_is_compared_with_the_topic_instead(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any, out: str
) -> None:
    topic = make_topic(SCHEMA)
    table, publication = accounts(topic), publish("state.accounts", topic=out, key="account")
    topic.send([paid("a", 1), paid("b", 1)])
    materialize(table, settings, spark, schemas=schemas)
    materialize(publication, settings, spark, schemas=schemas)
    topic.send([Sent(key="a"), paid("b", 1)])
    rebuild(table, settings, spark, schemas=schemas)
    log = Path(settings.warehouse, "state/accounts/_delta_log")
    for parquet in log.parent.glob("*.parquet"):
        if parquet.name in (log / f"{0:020d}.json").read_text():
            parquet.unlink()
    with pytest.raises(TableError, match=r"no longer there to compare with.*--rebuild"):
        materialize(publication, settings, spark, schemas=schemas)
    assert rebuild(publication, settings, spark, schemas=schemas).rows == 2
    assert {each.key: each.value and each.value["paid"] for each in read(settings, schemas, out)[2:]} == {
        "a": None,
        "b": 2,
    }
    assert verify(publication, settings, spark, schemas=schemas).is_exact


def test_a_cluster_that_does_not_answer_is_told_of(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any, out: str
) -> None:
    topic = make_topic(SCHEMA)
    topic.send([paid("a", 1)])
    materialize(accounts(topic), settings, spark, schemas=schemas)
    nowhere = replace(settings, bootstrap_servers="127.0.0.1:1")
    with pytest.raises(TopicError, match="no Kafka broker answers"):
        materialize(publish("state.accounts", topic=out, key="account"), nowhere, spark, schemas=schemas)
