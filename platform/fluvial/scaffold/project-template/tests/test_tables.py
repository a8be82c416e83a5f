"""What the tables make of a few orders, on a broker, a registry and a Spark in this process."""

from fluvial.testing import assert_frame_equal, events
from my_platform.checks import sound_customers

ORDERS = "schemas/shop/orders.avsc"


def test_a_customer_is_a_row(embedded_platform, run_tables):
    embedded_platform.register("schemas")
    embedded_platform.send("orders", events(ORDERS, 3, customer="ada", amount=10.0), key="customer")
    embedded_platform.send("orders", events(ORDERS, 1, customer="bob", amount=2.5), key="customer")

    tables = run_tables("my_platform.tables", "state.customers")

    assert_frame_equal(
        tables["state.customers"].select("customer", "orders", "spent"),
        [{"customer": "ada", "orders": 3, "spent": 30.0}, {"customer": "bob", "orders": 1, "spent": 2.5}],
    )
    assert tables.check(sound_customers).passed


def test_later_orders_are_added(embedded_platform, run_tables):
    embedded_platform.register("schemas")
    for _ in range(2):
        embedded_platform.send("orders", events(ORDERS, 1, customer="ada", amount=-4.0), key="customer")
        tables = run_tables("my_platform.tables", "state.customers")

    assert_frame_equal(tables["state.customers"].select("spent"), [{"spent": -8.0}])
    assert not tables.check(sound_customers).passed
