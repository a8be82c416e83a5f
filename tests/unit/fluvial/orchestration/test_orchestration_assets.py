"""The assets that declarations become, run by Dagster itself."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from miniature import DECLARATIONS, NoSpark, Runner, busiest, result_of

from fluvial.errors import FluvialError
from fluvial.orchestration import Policy, assets_for
from fluvial.orchestration.assets.assets import code_version, table_asset
from fluvial.orchestration.assets.lineage import column_descriptions
from fluvial.orchestration.assets.metadata import column_schema
from fluvial.registry.contracts import Contract
from fluvial.tables import Declaration, State, aggregate, compacted, count, pipeline, publish, state, sum_
from fluvial.tables.plan.result import RunResult


def materialize(runner: Runner, table: str, **options: Any) -> dg.ExecuteInProcessResult:
    assets = assets_for(DECLARATIONS, run=runner, retry_policy=dg.RetryPolicy(max_retries=2, delay=0))
    return dg.materialize(
        assets,
        selection=[table.replace(".", "/")],
        resources={"spark": NoSpark()},
        run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        **options,
    )


def metadata_of(result: dg.ExecuteInProcessResult, table: str) -> Mapping[str, dg.MetadataValue[Any]]:
    (materialization,) = result.asset_materializations_for_node(table.replace(".", "__"))
    return materialization.metadata


def test_tables_depend_on_what_they_are_built_from(definitions: dg.Definitions) -> None:
    graph = definitions.resolve_asset_graph()
    parents = {
        key.to_user_string(): {parent.to_user_string() for parent in graph.get(key).parent_keys}
        for key in graph.get_all_asset_keys()
    }
    assert parents == {
        "history/orders": {"topics/orders"},
        "state/customers": {"topics/orders"},
        "marts/busiest": {"history/orders"},
        "topics/orders": set(),
    }


def test_a_topic_that_is_published_stands_between_its_table_and_its_readers() -> None:
    declared = [
        state("fleet", topic="t", key="id", fields={"n": count()}),
        publish("state.fleet", topic="a.b-c", key="id"),
    ]
    assets = assets_for({each.table: each for each in [*declared, compacted("a.b-c", key="id")]})
    graph = dg.Definitions(assets=assets, resources={"spark": NoSpark()}).resolve_asset_graph()
    published = dg.AssetKey(["topics", "a.b-c"])
    assert graph.get(published).parent_keys == {dg.AssetKey(["state", "fleet"])}
    assert graph.get(published).child_keys == {dg.AssetKey(["compacted", "a_b_c"])}
    assert graph.external_asset_keys == {dg.AssetKey(["topics", "t"])}


def test_a_table_of_a_topic_says_how_its_rows_are_explained(definitions: dg.Definitions) -> None:
    graph = definitions.resolve_asset_graph()
    told = {key.to_user_string(): graph.get(key).metadata.get("explain_row") for key in graph.materializable_asset_keys}
    assert told["history/orders"] == dg.MetadataValue.md("`fluvial table explain-row history.orders KEY`")
    assert {name.partition("/")[0] for name, value in told.items() if value is None} <= {"marts", "topics"}


def test_only_tables_can_be_materialised(definitions: dg.Definitions) -> None:
    graph = definitions.resolve_asset_graph()
    assert {key.to_user_string() for key in graph.external_asset_keys} == {"topics/orders"}


def test_a_run_tells_its_offsets_and_numbers(runner: Runner) -> None:
    runner.outcomes["history.orders"] = result_of(
        "history.orders", version_before=3, version_after=4, offsets={1: (5, 9), 0: (0, 3)}, quarantined=2, late_rows=3
    )
    metadata = metadata_of(materialize(runner, "history.orders"), "history.orders")
    values = {name: metadata[name].value for name in ("skipped", "rows", "quarantined", "late_rows", "seconds")}
    assert values == {"skipped": False, "rows": 7, "quarantined": 2, "late_rows": 3, "seconds": 0.5}
    assert (metadata["delta_version_before"].value, metadata["delta_version"].value) == (3, 4)
    offsets = metadata["offsets"]
    assert isinstance(offsets, dg.TableMetadataValue)
    assert [record.data for record in offsets.records] == [
        {"partition": 0, "start": 0, "end": 3, "records": 3},
        {"partition": 1, "start": 5, "end": 9, "records": 4},
    ]


def test_a_run_with_nothing_new_succeeds_and_says_so(runner: Runner) -> None:
    runner.outcomes["history.orders"] = result_of(
        "history.orders", skipped=True, rows=0, version_before=4, version_after=4
    )
    result = materialize(runner, "history.orders")
    assert result.success
    assert metadata_of(result, "history.orders")["skipped"].value is True
    assert "no new records" in str(metadata_of(result, "history.orders")["note"].value)


def test_a_fault_that_may_pass_is_retried(runner: Runner) -> None:
    runner.outcomes["history.orders"] = ConnectionError("the broker restarts")
    assert not materialize(runner, "history.orders", raise_on_error=False).success
    assert runner.asked == ["history.orders"] * 3


def test_an_error_that_only_a_user_can_repair_is_not_retried(runner: Runner) -> None:
    runner.outcomes["history.orders"] = FluvialError("no topic orders: create it")
    with pytest.raises(dg.Failure, match="no topic orders: create it"):
        materialize(runner, "history.orders")
    assert runner.asked == ["history.orders"]


def customers(**fields: Any) -> State:
    return state("customers", topic="orders", key="customer", fields=fields)


def test_the_code_version_is_of_what_decides_the_rows() -> None:
    assert code_version(customers(orders=count())) == code_version(customers(orders=count()))
    assert code_version(customers(orders=count())) != code_version(customers(orders=count("amount > 0")))
    assert code_version(customers(orders=count())) != code_version(DECLARATIONS["history.orders"])


def test_the_code_version_of_a_pipeline_is_the_one_it_names_or_its_text() -> None:
    @pipeline(name="quiet", inputs=["history.orders"], version="2")
    def quiet(orders: Any) -> Any:
        return orders

    assert code_version(quiet) == code_version(quiet)
    assert code_version(quiet) != code_version(replace(quiet, version="3"))
    assert code_version(busiest) != code_version(replace(busiest, version="1"))


def test_a_backfill_of_several_days_is_one_run() -> None:
    orders, days = DECLARATIONS["history.orders"], dg.DailyPartitionsDefinition("2025-01-01")
    windows: list[Any] = []

    def run(declaration: Declaration, *_: Any, window: Any, **__: Any) -> RunResult:
        windows.append((window.start_ms, window.end_ms))
        return result_of(declaration.table)

    assets = assets_for({orders.table: orders}, run=run, policy=Policy(partitions=days))
    (table,) = [each for each in assets if isinstance(each, dg.AssetsDefinition)]
    assert table.backfill_policy == dg.BackfillPolicy.single_run()
    ranged = {"dagster/asset_partition_range_start": "2025-01-02", "dagster/asset_partition_range_end": "2025-01-04"}
    job = dg.Definitions(assets=assets, resources={"spark": NoSpark()}).resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(tags=ranged)
    day_ms = 24 * 3600 * 1000
    ((start, end),) = windows
    assert (start, end) == (1735776000000, start + 3 * day_ms)
    filled = [each.partition for each in result.asset_materializations_for_node("history__orders")]
    assert filled == ["2025-01-02", "2025-01-03", "2025-01-04"]


def test_columns_are_described_by_their_folds() -> None:
    described = column_descriptions(customers(orders=count("amount > 0"), spent=sum_("amount")), None)
    columns = [{"name": name, "type": "bigint", "comment": None, "nullable": True} for name in ("customer", "spent")]
    shown = {column.name: column.description for column in column_schema(columns, described).columns}
    assert shown == {"customer": None, "spent": str(sum_("amount"))}


def test_an_aggregate_is_an_asset_that_says_what_it_has() -> None:
    spend = aggregate("history.orders", name="spend", by="customer", fields={"spent": sum_("amount")})
    (spec,) = table_asset(spend, contract=None, policy=Policy()).specs
    assert spec.key == dg.AssetKey(["marts", "spend"])
    assert [dep.asset_key for dep in spec.deps] == [dg.AssetKey(["history", "orders"])]
    assert spec.description == "One row for each customer of history.orders.\n\n- `spent`: sum(amount)"
    assert column_descriptions(spend, None) == {"spent": "sum(amount)"}
    other = aggregate("history.orders", name="spend", by="customer", fields={"spent": sum_("amount + 1")})
    assert code_version(spend) != code_version(other)


@pytest.mark.parametrize(
    ("tags", "groups"),
    [
        (
            {"domain": "web-shop"},
            {"contracts": "web_shop", "topics": "web_shop", "history": "web_shop", "marts": "marts"},
        ),
        ({}, {"contracts": "contracts", "topics": "topics", "history": "history", "marts": "marts"}),
    ],
)
def test_the_group_is_the_domain(tags: dict[str, str], groups: dict[str, str], tmp_path: Path) -> None:
    contract = Contract(
        producer="shop",
        contact="shop@example.org",
        subject="orders-value",
        path=tmp_path / "orders.avsc",
        schema={"type": "record", "name": "Order", "fields": []},
        text="",
        compatibility="BACKWARD",
        topics=("orders",),
        tags=tags,
    )
    declared = {each.table: each for each in (DECLARATIONS["history.orders"], busiest)}
    graph = dg.Definitions(
        assets=assets_for(declared, contracts=[contract]), resources={"spark": NoSpark()}
    ).resolve_asset_graph()
    assert {key.path[0]: graph.get(key).group_name for key in graph.get_all_asset_keys()} == groups
