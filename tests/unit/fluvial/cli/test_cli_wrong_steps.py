"""
What a new user does wrong on the way to a first table: each step is answered with one line that names the repair.

The platform runs in this process and Spark never starts: what can be known before it does is told before.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fluvial_command import Cli

from fluvial.scaffold import create_project
from fluvial.testing import EmbeddedPlatform, embedded_platform

TABLES = "my_shop/tables.py"
OWNER = "schemas/shop/owner.toml"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPlatform]:
    project = tmp_path_factory.mktemp("contracts") / "my_shop"
    create_project(project)
    with embedded_platform() as running:
        running.register(project / "schemas")
        running.broker.create_topic("visits")
        yield running


@pytest.fixture
def shop(tmp_path: Path, platform: EmbeddedPlatform) -> Cli:
    """A new project, on the platform of these tests."""
    folder = tmp_path / "my_shop"
    create_project(folder)
    shop = Cli(folder)
    settings = (folder / "fluvial.toml").read_text()
    (folder / "fluvial.toml").write_text(
        f'{settings}bootstrap_servers = "{platform.bootstrap_servers}"\nregistry_url = "{platform.registry_url}"\n'
    )
    return shop


def edit(shop: Cli, file: str, before: str, after: str) -> None:
    path = shop.cwd / file
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (
            'topic="orders"',
            'topic="order"',
            ["there is no topic order on", "did you mean orders? Repair the declaration's topic, or create it with"],
        ),
        (
            'topic="orders"',
            'topic="zebras"',
            ["there is no topic zebras on", "repair the declaration's topic", "`fluvial topic create zebras`"],
        ),
        (
            'topic="orders"',
            'topic="visits"',
            ["no schema is registered for visits-value", "`fluvial schema register`"],
        ),
        (
            'key="customer"',
            'key="order_id"',
            ['the record key of orders-value is customer (its "fluvial.key")', 'write key="customer"'],
        ),
        (
            'key="customer"',
            'key="custmer"',
            ['state("customers"): orders-value has no field custmer: did you mean key="customer"?'],
        ),
        ('key="customer"', 'key="the customer"', ["key 'the customer' is no column name: use letters"]),
        (
            'sum_("amount")',
            'sum_("order_id")',
            [
                "field spent = sum(order_id) needs a number, and order_id is string in orders-value",
                'make it one, as in "cast(order_id as double)", or name a field that is one (amount)',
            ],
        ),
        (
            'sum_("amount")',
            'sum_("ordered_at")',
            ["needs a number, and ordered_at is timestamp-millis in orders-value"],
        ),
        ('sum_("amount")', 'sum_("amout")', ["orders-value has no field amout: did you mean amount?"]),
        ('sum_("amount")', '"amount"', ["field spent is 'amount', not a fold: wrap it, as in latest('amount')"]),
        ('"orders": count()', '"customer": count()', ["two columns named customer: rename the field"]),
        ("import count,", "import counts,", ["my_shop.tables cannot be imported", "counts"]),
    ],
)
def test_a_table_that_is_declared_wrong(shop: Cli, before: str, after: str, says: list[str]) -> None:
    edit(shop, TABLES, before, after)
    line = shop.refused("run")
    for each in says:
        assert each in line
    assert not (shop.cwd / ".fluvial" / "dagster").exists()
    assert not line.startswith("error: state.customers: state.customers")
    dry = shop.run("run", "--dry-run")
    assert dry.returncode == 1
    assert dry.stderr.splitlines()[-1] == line


def test_a_table_that_is_declared_twice(shop: Cli) -> None:
    path = shop.cwd / TABLES
    declared = path.read_text().partition("customers = state(")[2]
    path.write_text(f"{path.read_text()}\nagain = state({declared.replace('count()', 'count(None)')}")
    edit(shop, TABLES, '"last_order"', '"newest_order"')
    line = shop.refused("run")
    assert "state.customers is declared twice, in my_shop.tables.customers and in my_shop.tables.again" in line
    assert "give one of them another name" in line


def test_a_table_that_nobody_declares(shop: Cli) -> None:
    assert "no pipeline 'state.customer' in project 'my_shop.tables'; did you mean state.customers?" in shop.refused(
        "run", "state.customer"
    )


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("contact =", "contacts =", ["owner.toml: `contacts` is not a key of it", "contact"]),
        ('producer = "shop"', 'producer = "store"', ['`producer` is "store" but the folder is shop']),
        ('topics = ["orders"]', 'topics = ["order"]', ["`topics` does not name orders", "add it"]),
        ('"BACKWARD"', '"BACKWARDS"', ["`compatibility` is 'BACKWARDS'; write one of"]),
        ('["orders-value"]', '["orders-value", "returns-value"]', ["returns", "is missing"]),
    ],
)
def test_an_owner_that_is_written_wrong(shop: Cli, before: str, after: str, says: list[str]) -> None:
    edit(shop, OWNER, before, after)
    line = shop.refused("schema", "register")
    for each in says:
        assert each in line


def test_a_change_of_the_contract_that_readers_cannot_follow(shop: Cli) -> None:
    path = shop.cwd / "schemas" / "shop" / "orders.avsc"
    schema = json.loads(path.read_text())
    schema["fields"].append({"name": "channel", "type": "string"})
    path.write_text(json.dumps(schema))
    line = shop.refused("schema", "register")
    assert "orders.avsc" in line
    assert "channel" in line


def test_no_broker(shop: Cli) -> None:
    (shop.cwd / "fluvial.toml").write_text('project = "my_shop.tables"\nbootstrap_servers = "127.0.0.1:1"\n')
    line = shop.refused("run")
    assert "no Kafka broker at 127.0.0.1:1 accepts a connection; start the local platform with `fluvial up`" in line


def test_no_registry(shop: Cli) -> None:
    line = shop.refused("run", "--registry-url", "http://127.0.0.1:1")
    assert "the schema registry at http://127.0.0.1:1 does not answer" in line
    assert "--registry-url" in line


def test_no_java(shop: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "apt-get").symlink_to(shutil.which("true") or os.devnull)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    line = shop.refused("run")
    assert "Spark needs Java 17 or 21 and there is no `java` on PATH" in line
    assert "apt-get install -y openjdk-17-jre-headless" in line


@pytest.mark.parametrize("below", ["notes", "notes/deeper"])
def test_a_warehouse_that_cannot_be_written(shop: Cli, below: str) -> None:
    (shop.cwd / "notes").write_text("mine")
    line = shop.refused("run", "--warehouse", below)
    assert f"the warehouse {shop.cwd / below} cannot be made" in line
    assert "name another folder with --warehouse" in line


def test_what_is_wrong_with_one_table_does_not_stop_the_others(shop: Cli, platform: EmbeddedPlatform) -> None:
    from fluvial.tables import history
    from fluvial.tables.drive.preflight import look_ahead

    found = look_ahead([history("orders"), history("order")], {}, platform.settings(shop.cwd))
    assert list(found.problems) == ["history.order"]


def test_co_partitioned_topics_that_get_different_numbers_of_partitions(shop: Cli) -> None:
    (shop.cwd / TABLES).write_text("""
from fluvial.tables import history, pipeline

orders, returns = history("orders"), history("returns")


@pipeline(name="returned", inputs=["history.orders", "history.returns"], co_partitioned=True)
def returned(orders, returns):
    return orders.join(returns, "order_id")
""")
    line = shop.refused("topic", "create", "returns", "--partitions", "3")
    assert "topic 'returns' is not created with 3 partitions" in line
    assert 'pipeline("returned") declares it co-partitioned with orders, which has 1 partitions' in line
    assert "create it with --partitions 1" in line
    created = shop.run("topic", "create", "returns")
    assert created.returncode == 0, created.stderr
    grown = shop.run("topic", "alter", "returns", "--partitions", "2")
    assert grown.returncode == 0, grown.stderr
    problem = grown.stderr.splitlines()[-1]
    says = "of partitions orders has 1, returns has 2"
    repair = "`fluvial topic alter orders --partitions 2` while there are no records"
    assert says in grown.stderr
    line = shop.refused("run", "marts.returned")
    assert says in line
    assert repair in line
    planned = shop.run("run", "--dry-run")
    assert planned.returncode == 1
    assert f"marts.returned: {problem}" in planned.stderr
