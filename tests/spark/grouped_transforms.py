"""Random transforms whose rows depend on one key's rows of their inputs, and random changes of these inputs."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from pyspark.sql import functions as sql
from pyspark.sql.window import Window

from fluvial.tables import Pipeline, aggregate, count, count_distinct, max_, mean, min_, pipeline, sum_, top

ORDERS, CUSTOMERS = "history.orders", "state.customers"
CUSTOMER_COUNT = 12
DAY = "date(at)"

AGGREGATES: Sequence[Callable[[], Any]] = (
    lambda: sql.sum("amount").alias("spent"),
    lambda: sql.count("*").alias("n"),
    lambda: sql.countDistinct("item").alias("items"),
    lambda: sql.sort_array(sql.collect_list("item")).alias("bought"),
    lambda: sql.expr("max_by(item, struct(at, id))").alias("latest"),
    lambda: sql.avg("weight").alias("weight"),
    lambda: sql.expr("percentile(amount, 0.5)").alias("median"),
    lambda: sql.min("at").alias("since"),
)


FIELDS = {
    "n": count(),
    "few": count("amount < 4"),
    "spent": sum_("amount"),
    "least": min_("at"),
    "latest": max_("struct(at, id)"),
    "mean": mean("amount", "item <> 'b'"),
    "items": count_distinct("item"),
    "cities": count_distinct("city", "amount > 2"),
    "best": top("struct(amount, id)", 3),
    "weight": sum_("weight"),
}

SHAPES = ("parts", "cities", "days", "aggregate", "join", "left", "full", "window", "python")


def random_pipeline(random: Random, shape: str) -> Pipeline:
    """A pipeline or an aggregate by customer, by customer and day, or by the city that both inputs lead to."""
    if shape == "parts":
        fields = {name: FIELDS[name] for name in random.sample(sorted(FIELDS), random.randint(1, 5))}
        by = random.choice(({"customer": "customer"}, {"customer": "customer", "day": DAY}, {"city": "city"}))
        return aggregate(ORDERS, name="random_parts", by=by, fields=fields, where=random.choice((None, "amount > 3")))
    chosen = [make() for make in random.sample(AGGREGATES, random.randint(1, 4))]
    least = random.choice((None, 3))

    def orders_of(orders: Any) -> Any:
        return orders if least is None else orders.where(sql.col("amount") > least)

    def grouped(*keys: Any) -> Callable[[Any], Any]:
        return lambda orders: orders_of(orders).groupBy(*keys).agg(*chosen)

    def joined(how: str) -> Callable[[Any, Any], Any]:
        return lambda orders, customers: grouped("customer")(orders).join(
            customers.withColumnRenamed("id", "customer"), "customer", how
        )

    def ranked(orders: Any) -> Any:
        latest = Window.partitionBy("customer").orderBy(sql.desc("at"), "id")
        return orders_of(orders).withColumn("rank", sql.row_number().over(latest)).where("rank <= 2")

    def python(orders: Any) -> Any:
        def spread(rows: Any) -> Any:
            return rows.groupby("customer", dropna=False, as_index=False).agg(n=("id", "size"), last=("id", "max"))

        return orders_of(orders).groupBy("customer").applyInPandas(spread, "customer string, n bigint, last bigint")

    def cities(orders: Any, customers: Any) -> Any:
        people = customers.groupBy("city").agg(sql.count("*").alias("people"))
        return grouped("city")(orders).join(people, "city", "full_outer")

    both = {ORDERS: "customer", CUSTOMERS: "id"}
    one: dict[str, Any] = {ORDERS: "customer"}
    declared: dict[str, tuple[dict[str, Any], Any, Callable[..., Any]]] = {
        "aggregate": (one, "customer", grouped("customer")),
        "days": ({ORDERS: ["customer", DAY]}, ["customer", "day"], grouped("customer", sql.expr(DAY).alias("day"))),
        "join": (both, "customer", joined("inner")),
        "left": (both, "customer", joined("left")),
        "full": (both, "customer", joined("full_outer")),
        "window": (one, "customer", ranked),
        "python": (one, "customer", python),
        "cities": ({ORDERS: "city", CUSTOMERS: "city"}, "city", cities),
    }
    inputs, key, transform = declared[shape]
    return pipeline(name=f"random_{shape}", inputs=inputs, key=key, version="1")(transform)


def random_orders(random: Random, first: int, count: int) -> list[tuple[Any, ...]]:
    """Rows of orders with ids from `first`; some come late, some have no customer."""
    return [
        (
            number,
            random.choice([None, *(f"c{each}" for each in range(CUSTOMER_COUNT))]),
            f"city {random.randrange(4)}",
            random.choice("abc"),
            random.randrange(10),
            random.random() * 100,
            f"2025-03-{random.randint(1, 4):02d} {random.randrange(24):02d}:00:00",
        )
        for number in range(first, first + count)
    ]


ORDER_COLUMNS = "id bigint, customer string, city string, item string, amount int, weight double, time string"


def random_change(random: Random, first: int) -> tuple[str, str] | None:
    """A statement, with TABLE for the table that it changes; None for more orders."""
    customer, city = f"c{random.randrange(CUSTOMER_COUNT)}", f"city {random.randrange(4)}"
    return random.choice(
        (
            None,
            None,
            (ORDERS, f"UPDATE TABLE SET amount = amount + 5, city = '{city}' WHERE id % 7 = {random.randrange(7)}"),
            (ORDERS, f"DELETE FROM TABLE WHERE customer = '{customer}'"),
            (ORDERS, "OPTIMIZE TABLE"),
            (CUSTOMERS, f"DELETE FROM TABLE WHERE id = '{customer}'"),
            (CUSTOMERS, f"UPDATE TABLE SET city = '{city}' WHERE id = '{customer}'"),
            (
                CUSTOMERS,
                f"MERGE INTO TABLE AS t USING (SELECT '{customer}' AS id, '{city}' AS city) AS s ON t.id = s.id "
                "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
            ),
            (CUSTOMERS, f"INSERT OVERWRITE TABLE VALUES ('{customer}', '{city}'), ('c99', 'city {first % 4}')"),
        )
    )
