"""Which tables `fluvial run --select` chooses."""

import json
from collections.abc import Iterable

import pytest
import typer
from fluvial_command import Cli

from fluvial.cli.run.run import require_declared
from fluvial.cli.run.selection import EmptySelectionError, Tags, selected
from fluvial.registry.client import RegistryClient
from fluvial.testing import embedded_platform

ORDER = '{"type": "record", "name": "Order", "fields": [{"name": "amount", "type": "int"}]}'
INPUTS = {
    "history.orders": (),
    "state.orders": (),
    "marts.daily": ("history.orders", "state.orders"),
    "marts.best": ("marts.daily",),
}
TAGS: Tags = {"history.orders": {"domain": "shop"}, "state.orders": {"domain": "web"}, "marts.best": {"gold": ""}}


def select(*words: str) -> list[str]:
    def require(names: Iterable[str]) -> None:
        require_declared(names, list(INPUTS), "shop")

    return selected(words, INPUTS, require=require, tags=lambda: TAGS)


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        (("state.orders",), ["state.orders"]),
        (("+marts.daily",), ["history.orders", "state.orders", "marts.daily"]),
        (("state.orders+",), ["state.orders", "marts.daily", "marts.best"]),
        (("+marts.daily+",), list(INPUTS)),
        (("marts.best", "history.orders"), ["history.orders", "marts.best"]),
        (("tag:domain=shop",), ["history.orders"]),
        (("tag:domain",), ["history.orders", "state.orders"]),
        (("+tag:gold",), list(INPUTS)),
    ],
)
def test_words_select_tables(words: tuple[str, ...], chosen: list[str]) -> None:
    assert select(*words) == chosen


def test_a_wrong_word_is_told() -> None:
    with pytest.raises(typer.BadParameter, match=r"write NAME, \+NAME"):
        select("++x")
    with pytest.raises(EmptySelectionError, match="no table has the tag team=x; there are domain=shop, domain=web"):
        select("tag:team=x")


def test_a_dry_run_of_a_selection_answers_in_json(cli: Cli) -> None:
    (cli.cwd / "shop.py").write_text(
        "from fluvial.tables import history, pipeline\n"
        "orders = history('orders')\n"
        "returns = history('returns')\n"
        "@pipeline(name='daily', inputs=['history.orders'])\n"
        "def daily(orders): return orders\n"
    )
    with embedded_platform() as platform, RegistryClient(platform.registry_url) as registry:
        platform.broker.create_topic("orders")
        registry.register("orders-value", ORDER)
        servers = ("--bootstrap-server", platform.bootstrap_servers, "--registry-url", platform.registry_url)
        words = ("run", "--project", "shop", "--dry-run", *servers)
        planned = json.loads(cli.ok(*words, "--select", "+marts.daily", "--format", "json"))
        assert [(each["table"], each["would_write"]) for each in planned] == [
            ("history.orders", True),
            ("marts.daily", True),
        ]
        assert "did you mean history.orders" in cli.refused(*words, "--select", "history.order")
        assert "no table has the tag domain=shop" in cli.refused(*words, "--select", "tag:domain=shop")
    assert "leave out --continuous" in cli.refused("run", "--continuous", "--format", "json", "--project", "shop")
