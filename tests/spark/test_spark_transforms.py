"""
Pipelines: written from fixed versions of their inputs, and only when there is something new to say.
"""

from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from log_topic import Schemas, Sent

from fluvial.config import Settings
from fluvial.delta.stamp import TableError
from fluvial.spark.session import UnknownTableError, register_tables, run_sql
from fluvial.tables import DeclarationError, history, pipeline
from fluvial.tables.declare.co_partitioning import CoPartitioningError
from fluvial.tables.drive.runner import materialize

pytestmark = pytest.mark.spark


def write(spark: Any, settings: Settings, table: str, query: str) -> None:
    spark.sql(query).write.format("delta").mode("append").save(f"{settings.warehouse}/{table.replace('.', '/')}")


@pytest.fixture
def inputs(spark: Any, warehouse_settings: Settings) -> Settings:
    write(
        spark, warehouse_settings, "history.flights", "SELECT * FROM VALUES ('JFK', 10), ('LGA', 4) AS t(origin, delay)"
    )
    write(spark, warehouse_settings, "compacted.airports", "SELECT 'JFK' AS id, 'Kennedy' AS name")
    register_tables(spark, warehouse_settings)
    return warehouse_settings


@pipeline(name="delay_by_airport", inputs=["history.flights", "compacted.airports"])
def delay_by_airport(flights: Any, airports: Any) -> Any:
    known = flights.join(airports, flights.origin == airports.id)
    return known.groupBy("name").agg({"delay": "sum"}).withColumnRenamed("sum(delay)", "delay")


def test_a_pipeline_is_written_once_for_each_version_of_its_inputs(spark: Any, inputs: Settings) -> None:
    first = materialize(delay_by_airport, inputs, spark)
    assert (first.rows, first.skipped, dict(first.inputs)) == (
        1,
        False,
        {"history.flights": 0, "compacted.airports": 0},
    )
    assert materialize(delay_by_airport, inputs, spark).skipped
    write(spark, inputs, "history.flights", "SELECT 'JFK' AS origin, 5 AS delay")
    second = materialize(delay_by_airport, inputs, spark)
    assert (second.version_before, second.version_after, second.inputs["history.flights"]) == (0, 1, 1)
    rows = run_sql(spark, inputs, "SELECT * FROM marts.delay_by_airport").collect()
    assert [(row.name, row.delay) for row in rows] == [("Kennedy", 15)]


def test_changed_code_is_a_reason_to_write_again(spark: Any, inputs: Settings) -> None:
    def names(version: str) -> Any:
        return pipeline(name="names", inputs=["compacted.airports"], version=version)(lambda airports: airports)

    assert not materialize(names("1"), inputs, spark).skipped
    assert materialize(names("1"), inputs, spark).skipped
    assert not materialize(names("2"), inputs, spark).skipped


def test_what_a_pipeline_gets_wrong_is_said_in_one_line(spark: Any, inputs: Settings) -> None:
    wrong_column = pipeline(name="x", inputs=["history.flights"])(lambda flights: flights.select("nowhere"))
    with pytest.raises(DeclarationError, match="nowhere"):
        materialize(wrong_column, inputs, spark)
    nothing = pipeline(name="x", inputs=["history.flights"])(lambda flights: None)
    with pytest.raises(DeclarationError, match="returned NoneType"):
        materialize(nothing, inputs, spark)
    no_input = pipeline(name="x", inputs=["history.nowhere"])(lambda frame: frame)
    with pytest.raises(TableError, match=r"reads history\.nowhere, which does not exist"):
        materialize(no_input, inputs, spark)


def test_names_in_sql_follow_the_warehouse(spark: Any, inputs: Settings) -> None:
    assert run_sql(spark, inputs, "SELECT count(*) AS n FROM history.flights").collect()[0].n == 2
    with pytest.raises(
        UnknownTableError, match=r"no table history\.nope; there are: compacted\.airports, history\.flights"
    ):
        run_sql(spark, inputs, "SELECT * FROM history.nope")


def test_a_table_is_read_as_of_an_earlier_version(spark: Any, inputs: Settings) -> None:
    write(spark, inputs, "history.flights", "SELECT 'EWR' AS origin, 1 AS delay")
    answer = run_sql(spark, inputs, "SELECT count(*) AS n FROM history.flights VERSION AS OF 0").collect()
    assert answer[0].n == 2
    versions = run_sql(spark, inputs, "DESCRIBE HISTORY history.flights").collect()
    assert [row.version for row in versions] == [1, 0]


def test_a_join_of_topics_declared_co_partitioned_that_are_not_is_refused(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any, admin: AdminClient
) -> None:
    schema = {"type": "record", "name": "Seen", "fields": [{"name": "customer", "type": "string"}]}
    topics = {name: make_topic(schema, partitions=count) for name, count in (("views", 2), ("purchases", 3))}
    for topic in topics.values():
        topic.send([Sent(key="ada", value={"customer": "ada"}, partition=1)])
    tables = [history(topic.name, name=name) for name, topic in topics.items()]
    inputs = [table.table for table in tables]

    def bring_up() -> None:
        for table in tables:
            materialize(table, settings, spark, schemas=schemas)

    def joined(*, co_partitioned: bool) -> Any:
        declare = pipeline(name="joined", inputs=inputs, version="1", co_partitioned=co_partitioned)
        return declare(lambda views, purchases: views.select("customer").join(purchases.select("customer"), "customer"))

    bring_up()
    assert materialize(joined(co_partitioned=False), settings, spark).rows == 1, "Spark joins what it is given"
    with pytest.raises(CoPartitioningError) as refused:
        materialize(joined(co_partitioned=True), settings, spark)
    views, purchases = (topic.name for topic in topics.values())
    assert refused.value.partitions == {views: 2, purchases: 3}
    for words in (f"{views} has 2", f"{purchases} has 3", f"`fluvial topic alter {views} --partitions 3`"):
        assert words in str(refused.value)

    admin.create_partitions([NewPartitions(views, 3)])[views].result(30)
    topics["views"].send([Sent(key="ada", value={"customer": "ada"}, partition=1)])
    bring_up()
    assert materialize(joined(co_partitioned=True), settings, spark).rows == 1, "what the new row leads to"
    assert spark.read.format("delta").load(f"{settings.warehouse}/marts/joined").count() == 2
