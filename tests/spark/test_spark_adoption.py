"""
Tables that somebody else made, taken over with their rows.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from log_topic import Schemas, Sent

from fluvial.config import Settings
from fluvial.delta.log import TableLog
from fluvial.delta.stamp import TableError
from fluvial.spark.session import register_tables
from fluvial.tables import (
    Declaration,
    collect_set,
    compacted,
    count,
    first,
    history,
    last_non_null,
    latest,
    mean,
    state,
    sum_,
)
from fluvial.tables.drive.adoption import AdoptionError, adopt
from fluvial.tables.drive.rebuild import rebuild
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.verify import verify
from fluvial.tables.plan.table_index import TableIndexes

pytestmark = pytest.mark.spark

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "city", "type": ["null", "string"]}, {"name": "amount", "type": "long"}],
}


def write(spark: Any, settings: Settings, declaration: Declaration, query: str) -> Path:
    """A table that somebody else made where a declaration has its own."""
    path = Path(settings.warehouse, *declaration.table.split("."))
    spark.sql(query).write.format("delta").save(str(path))
    register_tables(spark, settings)
    return path


def spend(state: dict[str, Any] | None, events: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """A reducer that goes on from the state that it is given."""
    return {"spent": (state or {"spent": 0})["spent"] + sum(event["amount"] for event in events)}


def order(key: str, city: str | None, amount: int) -> Sent:
    return Sent(key=key, value={"city": city, "amount": amount})


def rows(spark: Any, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in spark.sql(query).collect()]


def test_a_history_keeps_its_rows_untouched(spark: Any, settings: Settings, schemas: Schemas, make_topic: Any) -> None:
    topic = make_topic(SCHEMA)
    declared = history(topic.name, name="orders")
    earlier = "SELECT 'Bern' AS city, 1L AS amount, true AS imported"
    path = write(spark, settings, declared, earlier)
    files = {file: file.read_bytes() for file in path.glob("*.parquet")}
    topic.send([order("a", "Ulm", 2)])
    with pytest.raises(
        TableError, match=r"no run of fluvial wrote.*`fluvial table adopt history\.orders` adopts its rows"
    ):
        materialize(declared, settings, spark, schemas=schemas)

    adopted = adopt(declared, settings, spark, schemas=schemas, start="latest")
    assert (adopted.version_before, adopted.version_after, adopted.rows) == (0, 1, 1)
    assert materialize(declared, settings, spark, schemas=schemas).skipped, "records before the position are in it"
    topic.send([order("b", None, 3)])
    assert materialize(declared, settings, spark, schemas=schemas).rows == 1
    assert rows(spark, "SELECT city, amount, imported, _offset FROM history.orders ORDER BY amount") == [
        ("Bern", 1, True, None),
        (None, 3, None, 1),
    ]
    assert {file: file.read_bytes() for file in files} == files
    assert verify(declared, settings, spark, schemas=schemas).is_exact
    with pytest.raises(AdoptionError, match="already a table of fluvial"):
        adopt(declared, settings, spark, schemas=schemas)


@pytest.mark.rota
def test_events_go_on_from_the_rows_of_keyed_tables(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(SCHEMA)
    fields = {
        "n": count(),
        "total": sum_("amount"),
        "last": latest("amount"),
        "began": first("city"),
        "city": last_non_null("city"),
        "cities": collect_set("city"),
    }
    orders = compacted(topic.name, name="orders", key="id")
    customers = state("customers", topic=topic.name, key="id", fields=fields)
    earlier = "SELECT concat('k', id) AS id, 'Bern' AS city, id AS amount FROM range(4)"
    write(spark, settings, orders, earlier)
    folded = (
        "SELECT concat('k', id) AS id, 5L AS n, id AS total, id AS last, 'Bern' AS began, 'Bern' AS city, "
        "array('Bern') AS cities FROM range(4)"
    )
    write(spark, settings, customers, folded)
    spending = state("spending", topic=topic.name, key="id", reduce=spend, returns="spent BIGINT")
    write(spark, settings, spending, "SELECT concat('k', id) AS id, 100L AS spent FROM range(4)")
    for declared in (orders, customers, spending):
        assert adopt(declared, settings, spark, schemas=schemas).rows == 4
    topic.send([order("k1", "Ulm", 10), Sent(key="k2")])
    for declared in (orders, customers, spending):
        materialize(declared, settings, spark, schemas=schemas)
        # The first batch was a MERGE; from here on rows are swapped, as they are found by an index.
        spark.sql(f"ALTER TABLE {declared.table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = true)")
    topic.send([order("k1", None, 20), order("new", "Genf", 7), order("k3", None, 1)])
    for declared in (orders, customers, spending):
        materialize(declared, settings, spark, schemas=schemas, indexes=TableIndexes())
        log = TableLog(spark, f"{settings.warehouse}/{declared.table.replace('.', '/')}")
        assert [commit.operation for commit in log.newest_first(above=1)] == [
            "STREAMING UPDATE",
            "SET TBLPROPERTIES",
            "MERGE",
        ]
    assert rows(spark, "SELECT id, city, amount, _offset FROM compacted.orders ORDER BY id") == [
        ("k0", "Bern", 0, None),
        ("k1", None, 20, 2),
        ("k3", None, 1, 4),
        ("new", "Genf", 7, 3),
    ]
    found = rows(spark, "SELECT id, n, total, last, began, city, cities FROM state.customers ORDER BY id")
    assert found == [
        ("k0", 5, 0, 0, "Bern", "Bern", ["Bern"]),
        ("k1", 7, 31, 20, "Bern", "Ulm", ["Bern", "Ulm"]),
        ("k3", 6, 4, 1, "Bern", "Bern", ["Bern"]),
        ("new", 1, 7, 7, "Genf", "Genf", ["Genf"]),
    ]
    assert rows(spark, "SELECT id, spent FROM state.spending ORDER BY id") == [
        ("k0", 100),
        ("k1", 130),
        ("k3", 101),
        ("new", 7),
    ]
    with pytest.raises(TableError, match="only a history can be verified"):
        verify(customers, settings, spark, schemas=schemas)
    with pytest.raises(TableError, match="would lose them: --from-what-is-left"):
        rebuild(customers, settings, spark, schemas=schemas)


def test_what_does_not_fit_is_named_and_left_as_it_is(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(SCHEMA)

    def refused(declared: Declaration, query: str, complaint: str) -> None:
        path = write(spark, settings, declared, query)
        before = sorted(path.rglob("*"))
        with pytest.raises(AdoptionError, match=complaint):
            adopt(declared, settings, spark, schemas=schemas)
        assert sorted(path.rglob("*")) == before

    def counted(name: str, **fields: Any) -> Declaration:
        return state(name, topic=topic.name, key="id", fields=fields or {"n": count()})

    with pytest.raises(AdoptionError, match=r"holds no Delta table: `fluvial run history\.none`"):
        adopt(history(topic.name, name="none"), settings, spark, schemas=schemas)
    refused(
        history(topic.name, name="typed"),
        "SELECT 1 AS amount",
        "column city is missing, and must be string; column amount is int, and must be bigint",
    )
    refused(counted("more"), "SELECT 'a' AS id, 1L AS n, 2 AS m", "column m is int, and no event would ever change it")
    refused(counted("twice"), "SELECT 'a' AS id, id AS n FROM range(2)", "one row for each id, and has 'a' in 2")
    refused(counted("nobody"), "SELECT CAST(NULL AS STRING) AS id, 1L AS n", "has no key")
    refused(counted("empty"), "SELECT 'a' AS id, CAST(NULL AS BIGINT) AS n", "column n is null in 1 rows")
    refused(counted("means", m=mean("amount")), "SELECT 'a' AS id, 1D AS m", r"m = mean\(amount\) goes on from more")
    versions = state("versions", topic=topic.name, key="id", fields={"n": count()}, scd2=True)
    with pytest.raises(AdoptionError, match="keeps versions of its rows"):
        adopt(versions, settings, spark, schemas=schemas)
