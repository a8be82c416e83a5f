"""Tables of pipelines with what is behind their inputs, made by Sail; no Spark runs."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hand_written_table import HandWrittenTable

from fluvial.config import Settings
from fluvial.delta.log import TableLog
from fluvial.errors import FluvialError
from fluvial.fresh.behind import Tail
from fluvial.fresh.errors import StaleError
from fluvial.fresh.marts import fresh_mart
from fluvial.query import made_frames
from fluvial.query.engine import Answer, Door, Engine, RoutingError, Told
from fluvial.query.sail import Sail, SailError
from fluvial.query.versions import Version
from fluvial.spark.avro import Contract
from fluvial.spark.warehouse import Warehouse
from fluvial.tables import Pipeline, aggregate, count, history, mean, min_, pipeline, sum_
from fluvial.tables.refresh.pipeline_inputs import stamp_at

pytest.importorskip("pysail", reason="Sail is an extra: fluvial[sql]")
pytest.importorskip("grpc_status", reason="Spark Connect is an extra: fluvial[connect]")

ORDERS = {"id": pa.string(), "customer": pa.string(), "amount": pa.int64()}
CITIES = {"customer": pa.string(), "city": pa.string()}
FIELDS = [{"name": "id", "type": "string"}, {"name": "amount", "type": "long"}]


@pipeline(name="customers", inputs=["history.orders"], key="customer", version="1")
def customers(orders: Any) -> Any:
    from pyspark.sql import functions as sql

    return orders.where(sql.col("amount") > 0).groupBy("customer").agg(sql.sum("amount").alias("spent"))


@pipeline(
    name="cities", inputs={"history.orders": "customer", "compacted.cities": "customer"}, key="customer", version="1"
)
def cities(orders: Any, cities: Any) -> Any:
    joined = orders.join(cities, "customer", "left")
    return joined.groupBy("customer").agg({"amount": "sum", "city": "max"}).toDF("customer", "spent", "city")


@pipeline(name="large", inputs=["history.orders"], version="1")
def large(orders: Any) -> Any:
    return orders.where("amount > 4").select("customer", "amount")


@pytest.fixture(autouse=True)
def no_spark_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of many tests may have a session of Spark's, which would be asked in the place of Sail."""
    monkeypatch.setattr(made_frames, "_has_spark", lambda: False)


class Shop:
    """A warehouse of hand-written tables, with what is behind them."""

    def __init__(self, folder: Path) -> None:
        self.settings = Settings(warehouse=str(folder))
        self.orders = self.table("history.orders", ORDERS)
        self.orders.commit([("1", "ada", 1), ("2", "bob", 2), ("3", None, 3)])
        self.cities = self.table("compacted.cities", CITIES)
        self.cities.commit([("ada", "Bern")])
        self.behind = pa.table([["4", "5"], ["ada", None], [10, 20]], schema=pa.schema(list(ORDERS.items())))
        self.marts: dict[str, Pipeline] = {}
        self.asked_spark: list[str] = []
        self.said: list[str] = []

    def table(self, name: str, columns: Mapping[str, pa.DataType]) -> HandWrittenTable:
        return HandWrittenTable(Path(self.settings.warehouse, *name.split(".")), columns)

    def mart(
        self, declaration: Pipeline, columns: Mapping[str, pa.DataType], rows: Sequence[Sequence[Any]]
    ) -> HandWrittenTable:
        """A mart as a run of now would have left it, with these rows."""
        made = self.table(declaration.table, columns)
        warehouse = Warehouse.at(self.settings.warehouse)
        logs = {each: TableLog(None, warehouse.path(each)) for each in declaration.inputs}
        commits = {each: log.commit(log.newest_version() or 0) for each, log in logs.items()}
        made.commit(rows, stamp_at(declaration, commits))
        self.marts[declaration.table] = declaration
        return made

    def version(self, table: str) -> Version:
        newest = TableLog(None, Warehouse.at(self.settings.warehouse).path(table)).newest_version()
        newer = None
        if table == "history.orders" and self.behind.num_rows:
            contract = Contract(subject="orders-value", writers={}, reader_id=1, reader=json.dumps({"fields": FIELDS}))
            newer = Tail(declaration=history("orders"), contract=contract, number=2, events=self.behind)
        return Version(table=table, version=newest or 0, newer=newer)

    def fresh(self, tables: Sequence[str]) -> Mapping[str, Version]:
        found = {}
        for table in tables:
            found[table] = version = self.version(table)
            if table in self.marts:
                declaration = self.marts[table]
                inputs = self.fresh(declaration.inputs)
                newer = fresh_mart(declaration, version, inputs, Warehouse.at(self.settings.warehouse))
                found[table] = Version(
                    table=table, version=version.version, newer=newer, of=[*inputs.values()] if newer else ()
                )
        return found

    def ask(self, statement: str, *, engine: Engine = Engine.SAIL) -> tuple[list[dict[str, Any]], Told]:
        found: list[dict[str, Any]] = []

        def take(answer: Answer) -> None:
            names = [name for name, _ in answer.columns]
            found.extend(dict(zip(names, row, strict=True)) for row in answer.rows())

        with closing(
            Door(settings=self.settings, ask_spark=self._spark, say=self.said.append, engine=engine, fresh=self.fresh)
        ) as door:
            told = door.answer(statement, take, again=found.clear)
        return found, told

    def _spark(self, statement: str) -> Any:
        self.asked_spark.append(statement)
        raise AskedSparkError(statement)


class AskedSparkError(FluvialError):
    """Stands where Spark would answer."""


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "warehouse")


SPENT = {"customer": pa.string(), "spent": pa.int64()}


def by_customer(rows: list[dict[str, Any]]) -> dict[str | None, Any]:
    return {row.pop("customer"): tuple(row.values()) for row in rows}


def test_of_a_mart_with_a_key_the_keys_that_are_behind_its_inputs_are_made_again(shop: Shop) -> None:
    # What the table says of bob is what nobody would compute: it stays, as no record of his is behind the orders.
    shop.mart(customers, SPENT, [("ada", 1), ("bob", 99), (None, 3)])
    rows, told = shop.ask("select * from marts.customers")
    assert by_customer(rows) == {"ada": (11,), "bob": (99,), None: (23,)}
    assert str(told.versions[0]).startswith("marts.customers version 0")
    assert "and what is newer in history.orders version 0 and 2 newer offsets" in str(told)


def test_a_mart_whose_inputs_have_newer_versions_is_made_of_the_whole_of_them(shop: Shop) -> None:
    shop.mart(customers, SPENT, [("ada", 1), ("bob", 99), (None, 3)])
    shop.orders.commit([("6", "cid", 7)])
    assert by_customer(shop.ask("select * from marts.customers")[0]) == {
        "ada": (11,),
        "bob": (2,),
        "cid": (7,),
        None: (23,),
    }


def test_an_input_that_is_looked_up_leads_to_the_key_too_and_null_is_one(shop: Shop) -> None:
    columns = {"customer": pa.string(), "spent": pa.int64(), "city": pa.string()}
    shop.mart(cities, columns, [("ada", 1, "Bern"), ("bob", 99, None), (None, 3, None)])
    rows, told = shop.ask("select * from marts.cities")
    assert by_customer(rows) == {"ada": (11, "Bern"), "bob": (99, None), None: (23, None)}
    assert "history.orders" in str(told)
    assert "compacted.cities version 0" in str(told)


def test_a_mart_without_a_key_and_one_of_a_mart_are_made_of_their_whole_inputs(shop: Shop) -> None:
    @pipeline(name="sums", inputs=["marts.large"], version="1")
    def sums(large: Any) -> Any:
        return large.groupBy().sum("amount").toDF("total")

    shop.mart(large, {"customer": pa.string(), "amount": pa.int64()}, [])
    shop.mart(sums, {"total": pa.int64()}, [(0,)])
    assert by_customer(shop.ask("select * from marts.large")[0]) == {"ada": (10,), None: (20,)}
    # Two tables of one query are of the same records.
    question = "select total, (select count(*) from marts.large) n from marts.sums"
    assert shop.ask(question)[0] == [{"total": 30, "n": 2}]


def test_a_mart_without_rows_has_none(shop: Shop) -> None:
    none = pipeline(name="none", inputs=["history.orders"], version="1")(lambda orders: orders.where("amount > 1000"))
    shop.mart(none, ORDERS, [])
    assert shop.ask("select * from marts.none")[0] == []


def test_a_mart_with_nothing_behind_it_is_as_it_is(shop: Shop) -> None:
    shop.mart(customers, SPENT, [("ada", 99)])
    shop.behind = shop.behind.slice(0, 0)
    rows, told = shop.ask("select * from marts.customers")
    assert by_customer(rows) == {"ada": (99,)}
    assert "newer" not in str(told)


def test_a_mart_whose_pipeline_has_changed_or_whose_input_is_not_fresh_is_not(shop: Shop) -> None:
    shop.mart(customers, SPENT, [("ada", 99)])
    inputs = shop.fresh(["history.orders"])
    warehouse = Warehouse.at(shop.settings.warehouse)
    with pytest.raises(StaleError, match=r"its pipeline has changed since .* `fluvial run marts.customers`"):
        fresh_mart(replace(customers, version="2"), shop.version("marts.customers"), inputs, warehouse)
    stale = {table: replace(version, newer=None, stale="it leaves out duplicates") for table, version in inputs.items()}
    with pytest.raises(StaleError, match=r"history\.orders is not fresh: it leaves out duplicates"):
        fresh_mart(customers, shop.version("marts.customers"), stale, warehouse)


def doubled(orders: Any) -> Any:
    from pyspark.sql import functions as sql

    return orders.select("customer", (sql.col("amount") * 2).alias("spent"))


def doubled_later(orders: Any) -> Any:
    from pyspark.sql import functions as sql

    under_another = orders.select("customer", sql.col("amount").alias("a")).withColumnRenamed("a", "b")
    return under_another.selectExpr("customer", "b AS c").select("customer", (sql.col("c") * 2).alias("spent"))


def long_chain(orders: Any) -> Any:
    """Many steps that each make a column of itself and another, and no sum of an integer until the last."""
    from pyspark.sql import functions as sql

    rows = orders
    for _ in range(60):
        rows = rows.withColumn("id", sql.coalesce("id", sql.upper("id")))
    return rows.select("customer", (sql.col("amount") * 2).alias("spent"))


def beside(orders: Any) -> Any:
    """Nothing that may overflow: the column of a query that adds up others."""
    from pyspark.sql import functions as sql

    return orders.withColumn("n", sql.length("id") + 1).select("customer", sql.col("amount").alias("spent"))


def hashed(orders: Any) -> Any:
    from pyspark.sql import functions as sql

    return orders.select("customer", sql.hash("amount").cast("bigint").alias("spent"))


def by_python(orders: Any) -> Any:
    from pyspark.sql import functions as sql

    return orders.select("customer", sql.udf(lambda amount: amount, "bigint")("amount").alias("spent"))


def by_rdd(orders: Any) -> Any:
    return orders.rdd.toDF()


def of_another(orders: Any) -> Any:
    return orders.sparkSession.sql("select 'ada' customer, 1L spent")


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        (doubled, "a bigint may overflow"),
        (doubled_later, "an integer may overflow"),
        (long_chain, "a bigint may overflow"),
        (hashed, "hash is answered by Spark alone"),
        (by_python, "Sail refused"),
        (by_rdd, "Sail refused"),
        (of_another, "it asks a statement of its own"),
    ],
)
def test_what_sail_does_otherwise_than_spark_is_sparks(shop: Shop, transform: Callable[..., Any], reason: str) -> None:
    shop.mart(pipeline(name="customers", inputs=["history.orders"], version="1")(transform), SPENT, [("ada", 1)])
    with pytest.raises((SailError, RoutingError)):
        shop.ask("select * from marts.customers")
    assert shop.asked_spark == []
    with pytest.raises(AskedSparkError):
        shop.ask("select * from marts.customers", engine=Engine.AUTO)
    assert reason in shop.said[0], shop.said


def test_what_stands_beside_a_sum_does_not_send_it_to_spark(shop: Shop) -> None:
    shop.mart(pipeline(name="customers", inputs=["history.orders"], version="1")(beside), SPENT, [])
    assert len(shop.ask("select * from marts.customers")[0]) == 5


def test_an_aggregate_is_made_of_the_rows_of_its_keys(shop: Shop) -> None:
    fields = {"orders": count(), "spent": sum_("amount"), "least": min_("amount"), "usual": mean("amount")}
    declared = aggregate("history.orders", name="customers", by="customer", fields=fields)
    columns = {"customer": pa.string(), "orders": pa.int64(), "spent": pa.int64(), "least": pa.int64()}
    columns |= {"usual": pa.float64(), "_rows": pa.int64()}
    shop.mart(declared, columns, [("ada", 1, 1, 1, 1.0, 1), ("bob", 99, 2, 2, 2.0, 1), (None, 1, 3, 3, 3.0, 1)])
    rows, _ = shop.ask("select * from marts.customers")
    assert by_customer(rows) == {
        "ada": (2, 11, 1, 5.5, 2),
        "bob": (99, 2, 2, 2.0, 1),
        None: (2, 23, 3, 11.5, 2),
    }


def test_where_nothing_walls_sail_in_no_plan_is_sent_to_it(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sail, "is_walled_in", False)
    shop.mart(customers, SPENT, [("ada", 1)])
    with pytest.raises(SailError, match="neither namespaces nor landlock"):
        shop.ask("select * from marts.customers")


def test_the_socket_for_plans_is_its_users_alone_and_goes_with_the_engine(tmp_path: Path) -> None:
    with closing(Sail([tmp_path])) as sail:
        path = sail.connect()
        assert sail.connect() == path
        assert path.parent.stat().st_mode & 0o077 == 0
        # No port of this machine leads there: what it listens on is in a network of its own.
        listening = Path("/proc/net/tcp").read_text()
        assert Path(f"/proc/{sail._process.pid}/net/tcp").read_text() != listening
    assert not path.exists()
