"""Declarations as components: what is written in YAML, what `dg` reads of them, and what it writes."""

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster.components.core.snapshot import get_package_entry_snap
from dagster.components.scaffold.scaffold import get_scaffolder
from dagster_shared.serdes.objects import EnvRegistryKey

from fluvial.orchestration import components, declarations_in
from fluvial.tables import (
    Declaration,
    State,
    count,
    history,
    hopping,
    last_non_null,
    pipeline,
    publish,
    session,
    state,
    sum_,
    tumbling,
)

# Dagster builds its own definitions of components with arguments that it calls beta.
pytestmark = pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.BetaWarning")

MODULE = "fluvial.orchestration.components"
COMPONENTS = ["Compacted", "History", "Pipeline", "Project", "Publication", "Sources", "Spark", "State"]
Load = Callable[[Mapping[str, tuple[str, dict[str, Any]]]], dg.Definitions]


def last_amount(_state: Any, events: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """A reducer as a user would write it."""
    return {"amount": [event["amount"] for event in events][-1]}


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Write components to a project of its own and load it as a code location does."""
    (tmp_path / "pyproject.toml").write_text(
        '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "shop_yaml"\n'
    )
    root = tmp_path / "shop_yaml"
    (root / "defs").mkdir(parents=True)
    (root / "__init__.py").touch()
    (root / "mine.py").write_text(
        "def busiest(orders):\n    return orders\n\n\n"
        "def spend(state, events):\n    return {'spent': sum(event['amount'] for event in events)}\n"
    )
    (root / "tables.py").write_text("from fluvial.tables import history\n\norders = history('orders')\n")
    monkeypatch.syspath_prepend(tmp_path)

    def loaded(written: Mapping[str, tuple[str, dict[str, Any]]]) -> dg.Definitions:
        for name, (kind, attributes) in written.items():
            (root / "defs" / name).mkdir()
            text = yaml.safe_dump({"type": f"{MODULE}.{kind}", "attributes": attributes})
            (root / "defs" / name / "defs.yaml").write_text(text)
        return dg.load_from_defs_folder(path_within_project=root)

    yield loaded
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop_yaml"]:
        del sys.modules[name]


def test_yaml_makes_the_assets_of_the_declarations_that_python_makes(load: Load) -> None:
    fields = {"orders": {"fold": "count"}, "spent": {"fold": "sum", "expr": "amount", "where": "status = 'PAID'"}}
    definitions = load(
        {
            "orders": (
                "History",
                {
                    "topic": "orders",
                    "partitions": {"type": "hourly", "start_date": "2025-01-01-00:00"},
                    "links": {"runbook": "https://wiki.example/orders"},
                    "owners": ["team:shop"],
                    "stale_after_minutes": 60,
                },
            ),
            "customers": ("State", {"topic": "orders", "key": "customer", "name": "customers", "fields": fields}),
            "busiest": (
                "Pipeline",
                {
                    "inputs": ["history.orders"],
                    "name": "busiest",
                    "transform": "shop_yaml.mine:busiest",
                    "version": "1",
                },
            ),
            "sources": ("Sources", {"topics": ["orders"]}),
            "spark": ("Spark", {"master": "local[2]"}),
        }
    )
    from shop_yaml.mine import busiest

    folds = {"orders": count(), "spent": sum_("amount", "status = 'PAID'")}
    assert declarations_in(definitions) == {
        "history.orders": history("orders"),
        "state.customers": state("customers", topic="orders", key="customer", fields=folds),
        "marts.busiest": pipeline(name="busiest", inputs=["history.orders"], version="1")(busiest),
    }
    graph = definitions.resolve_asset_graph()
    orders = graph.get(dg.AssetKey(["history", "orders"]))
    assert isinstance(orders.partitions_def, dg.TimeWindowPartitionsDefinition)
    assert list(orders.owners) == ["team:shop"]
    assert orders.metadata["runbook"] == dg.MetadataValue.url("https://wiki.example/orders")
    assert orders.freshness_policy is not None
    assert graph.get(dg.AssetKey(["topics", "orders"])).kinds == {"kafka"}
    definitions.get_repository_def()


def test_yaml_declares_reducers_versions_of_rows_and_publications(load: Load) -> None:
    reduced = {"topic": "orders", "key": "customer", "reduce": "shop_yaml.mine:spend", "returns": "spent DOUBLE"}
    city = {"city": {"fold": "last_non_null", "expr": "city"}}
    definitions = load(
        {
            "spending": ("State", {**reduced, "name": "spending", "version": "2"}),
            "spending_then": ("State", {**reduced, "name": "spending_then", "scd2": "ordered_at"}),
            "cities": ("State", {"topic": "orders", "key": "customer", "name": "cities", "fields": city, "scd2": True}),
            "spending_topic": (
                "Publication",
                {"table": "state.spending", "topic": "spending.now", "key": "customer", "group": "shop"},
            ),
            "spark": ("Spark", {}),
        }
    )
    from shop_yaml.mine import spend

    def reduced_as(name: str, **more: Any) -> State:
        return state(name, topic="orders", key="customer", reduce=spend, returns="spent DOUBLE", **more)

    assert declarations_in(definitions) == {
        "state.spending": reduced_as("spending", version="2"),
        "state.spending_then": reduced_as("spending_then", scd2="ordered_at"),
        "state.cities": state(
            "cities", topic="orders", key="customer", fields={"city": last_non_null("city")}, scd2=True
        ),
        "topics.spending.now": publish("state.spending", topic="spending.now", key="customer"),
    }
    published = definitions.resolve_asset_graph().get(dg.AssetKey(["topics", "spending.now"]))
    assert published.parent_keys == {dg.AssetKey(["state", "spending"])}
    assert published.kinds == {"spark", "kafka"}
    assert published.group_name == "shop"


def test_yaml_declares_windows(load: Load) -> None:
    words = {"time": "ordered_at", "size": "1 hour"}
    pipelines = {
        "hours": {"kind": "tumbling", **words, "watermark": "10 minutes", "lateness": "1 day"},
        "halves": {"kind": "hopping", **words, "every": "30 minutes"},
        "visits": {"kind": "session", **words},
    }
    definitions = load(
        {
            name: (
                "Pipeline",
                {
                    "name": name,
                    "inputs": ["history.orders"],
                    "key": "customer",
                    "transform": "shop_yaml.mine:busiest",
                    "windows": {"history.orders": window},
                },
            )
            for name, window in pipelines.items()
        }
    )
    declared = {name.removeprefix("marts."): each for name, each in declarations_in(definitions).items()}
    assert {name: dict(each.windows) for name, each in declared.items()} == {  # type: ignore[union-attr]
        "hours": {"history.orders": tumbling("ordered_at", "1 hour", watermark="10 minutes", lateness="1 day")},
        "halves": {"history.orders": hopping("ordered_at", "1 hour", "30 minutes")},
        "visits": {"history.orders": session("ordered_at", "1 hour")},
    }


def test_a_project_in_one_component_is_a_whole_code_location(load: Load) -> None:
    definitions = load(
        {"all": ("Project", {"module": "shop_yaml.tables", "verify": True, "lag_max": 100}), "spark": ("Spark", {})}
    )
    assert set(declarations_in(definitions)) == {"history.orders"}
    repository = definitions.get_repository_def()
    assert [sensor.name for sensor in repository.sensor_defs] == ["new_offsets"]
    checks = definitions.resolve_asset_graph().get(dg.AssetKey(["history", "orders"])).check_keys
    assert {key.name for key in checks} == {"table_is_log", "keeps_up"}


@pytest.mark.parametrize(
    ("kind", "attributes", "complaint"),
    [
        ("State", {"topic": "orders", "key": "c", "fields": {"n": {"fold": "total"}}}, "total"),
        ("State", {"topic": "orders", "key": "c", "fields": {"n": {"fold": "sum"}}}, "sum needs an expr"),
        ("State", {"topic": "orders", "key": "c"}, "declares no field"),
        ("State", {"topic": "o", "key": "c", "reduce": "shop_yaml.mine:nobody", "returns": "n BIGINT"}, "reduce 'shop"),
        (
            "State",
            {"topic": "o", "key": "c", "reduce": "shop_yaml.mine.spend"},
            "does not say what its reducer returns",
        ),
        ("Publication", {"table": "history.orders", "topic": "o", "key": "c"}, "a history is its topic already"),
        ("History", {"topik": "orders"}, "topik"),
        ("Pipeline", {"inputs": ["history.o"], "name": "x", "transform": "shop_yaml.mine:nobody"}, "nobody"),
        (
            "Pipeline",
            {"inputs": ["history.o"], "name": "x", "transform": "shop_yaml.mine:busiest", "co_partitioned": True},
            "co_partitioned compares topics, and there is one input",
        ),
        (
            "Pipeline",
            {
                "inputs": ["history.o"],
                "name": "x",
                "transform": "shop_yaml.mine:busiest",
                "windows": {"history.o": {"kind": "hopping", "time": "at", "size": "1 hour"}},
            },
            "windows of history.o: hopping windows need every",
        ),
    ],
)
def test_a_mistake_is_named(load: Load, kind: str, attributes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Exception, match="wrong") as raised:
        declarations_in(load({"wrong": (kind, attributes)}))
    said: list[str] = []
    error: BaseException | None = raised.value
    while error is not None:
        said.append(str(error))
        error = error.__cause__ or error.__context__
    assert complaint in "\n".join(said)


@pytest.mark.parametrize("name", COMPONENTS)
def test_dg_can_list_a_component_with_its_attributes(name: str) -> None:
    snapshot = get_package_entry_snap(EnvRegistryKey(name=name, namespace=MODULE), getattr(components, name))
    assert snapshot.summary, name


def test_what_tables_have_in_common_is_no_component_of_its_own() -> None:
    with pytest.raises(TypeError, match="abstract"):
        components.TableComponent()  # type: ignore[abstract]


@pytest.mark.parametrize(
    ("component", "asked", "expected"),
    [
        ("History", {"topic": "orders"}, history("orders")),
        (
            "State",
            {"topic": "orders", "key": "customer"},
            state("orders", topic="orders", key="customer", fields={"events": count()}),
        ),
        (
            "State",
            {"topic": "orders", "key": "customer", "reduce": f"{__name__}:last_amount", "returns": "amount DOUBLE"},
            state("orders", topic="orders", key="customer", reduce=last_amount, returns="amount DOUBLE"),
        ),
        (
            "Publication",
            {"table": "state.orders", "topic": "orders-now", "key": "customer"},
            publish("state.orders", topic="orders-now", key="customer"),
        ),
    ],
    ids=["history", "folds", "reducer", "publication"],
)
def test_dg_writes_a_component_that_loads(
    load: Load, tmp_path: Path, component: str, asked: dict[str, str], expected: Declaration
) -> None:
    folder = tmp_path / "shop_yaml" / "defs" / "written"
    folder.mkdir()
    scaffolder: Any = get_scaffolder(getattr(components, component))
    scaffolder.scaffold(
        dg.ScaffoldRequest(
            type_name=f"{MODULE}.{component}",
            target_path=folder,
            scaffold_format="yaml",
            project_root=tmp_path,
            params=scaffolder.get_scaffold_params()(**asked),
        )
    )
    assert declarations_in(load({})) == {expected.table: expected}
