"""The factories as components: what is written in YAML, what `dg` reads of them, and what it writes."""

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

from fluvial.entities import count, history, pipeline, state, sum_
from fluvial.orchestration import components, declarations_in

# Dagster builds its own definitions of components with arguments that it calls beta.
pytestmark = pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.BetaWarning")

MODULE = "fluvial.orchestration.components"
Load = Callable[[Mapping[str, tuple[str, dict[str, Any]]]], dg.Definitions]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Write components to a project of its own and load it as a code location does."""
    (tmp_path / "pyproject.toml").write_text(
        '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "shop_yaml"\n'
    )
    root = tmp_path / "shop_yaml"
    (root / "defs").mkdir(parents=True)
    (root / "__init__.py").touch()
    (root / "mine.py").write_text("def busiest(orders):\n    return orders\n")
    (root / "tables.py").write_text("from fluvial.entities import history\n\norders = history('orders')\n")
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


def test_yaml_makes_the_assets_that_the_factories_make(load: Load) -> None:
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
                    "output": "busiest",
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
        ("History", {"topik": "orders"}, "topik"),
        ("Pipeline", {"inputs": ["history.o"], "output": "x", "transform": "shop_yaml.mine:nobody"}, "nobody"),
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


@pytest.mark.parametrize("name", ["History", "Compacted", "State", "Pipeline", "Sources", "Project", "Spark"])
def test_dg_can_list_a_component_with_its_attributes(name: str) -> None:
    snapshot = get_package_entry_snap(EnvRegistryKey(name=name, namespace=MODULE), getattr(components, name))
    assert snapshot.summary, name


def test_what_tables_have_in_common_is_no_component_of_its_own() -> None:
    with pytest.raises(TypeError, match="abstract"):
        components.TableComponent()  # type: ignore[abstract]


def test_dg_writes_a_component_that_loads(load: Load, tmp_path: Path) -> None:
    folder = tmp_path / "shop_yaml" / "defs" / "customers"
    folder.mkdir()
    scaffolder: Any = get_scaffolder(components.State)
    params = scaffolder.get_scaffold_params()(topic="orders", key="customer")
    scaffolder.scaffold(
        dg.ScaffoldRequest(
            type_name=f"{MODULE}.State",
            target_path=folder,
            scaffold_format="yaml",
            project_root=tmp_path,
            params=params,
        )
    )
    expected = state("orders", topic="orders", key="customer", fields={"events": count()})
    assert declarations_in(load({})) == {"state.orders": expected}
