"""
The asset graph of the project, kept as text.

A change of the graph is reviewed as a change of `asset_graph.txt`, which
`UPDATE_SNAPSHOTS=1 pytest tests/unit/dagster_project` writes again.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.definitions.freshness import TimeWindowFreshnessPolicy

import dagster_project.definitions
from dagster_project.definitions import defs

SNAPSHOT = Path(__file__).parent / "asset_graph.txt"


def graph_as_text(definitions: dg.Definitions) -> Iterator[str]:
    """One block an asset, in the order of their names."""
    graph = definitions.resolve_asset_graph()
    for key in sorted(graph.get_all_asset_keys(), key=dg.AssetKey.to_user_string):
        node = graph.get(key)
        yield f"{key.to_user_string()}  [{', '.join(sorted(node.kinds))}]{'' if node.is_executable else '  external'}"
        for name, values in (
            ("from", sorted(parent.to_user_string() for parent in node.parent_keys)),
            ("owners", sorted(node.owners)),
            ("group", [node.group_name]),
            ("tags", sorted(f"{name}={value}" for name, value in node.tags.items() if "/" not in name)),
            ("links", sorted(name for name, value in node.metadata.items() if isinstance(value, dg.UrlMetadataValue))),
            ("columns", _columns(node.metadata.get("dagster/column_schema"))),
            ("column lineage", _lineage(node.metadata.get("dagster/column_lineage"))),
            ("run", _how_it_is_run(definitions, key)),
            ("checks", sorted(_described(graph, check) for check in node.check_keys)),
        ):
            if values:
                yield f"    {name}: {', '.join(map(str, values))}"


def _columns(found: Any) -> list[str]:
    return [] if found is None else [f"{column.name} {column.type}" for column in found.columns]


def _lineage(found: Any) -> list[str]:
    deps = {} if found is None else found.deps_by_column
    return [
        f"{column} < {' '.join(f'{each.asset_key.path[-1]}.{each.column_name}' for each in sources) or 'nothing'}"
        for column, sources in deps.items()
    ]


def _how_it_is_run(definitions: dg.Definitions, key: dg.AssetKey) -> list[str]:
    node = definitions.resolve_asset_graph().get(key)
    if not node.is_executable:
        return []
    step = node.assets_def.op
    assert step.retry_policy is not None, key
    assert isinstance(node.freshness_policy, TimeWindowFreshnessPolicy), key
    return [
        f"pool {step.pool}",
        f"{step.retry_policy.max_retries} retries",
        f"stale after {node.freshness_policy.fail_window.to_timedelta().total_seconds() / 3600:g} h",
        "code version" if node.code_version else "no code version",
    ]


def _described(graph: Any, key: dg.AssetCheckKey) -> str:
    return f"{key.name} (blocking)" if graph.get(key).blocking else key.name


def test_the_graph_is_the_one_that_was_reviewed() -> None:
    text = "\n".join(graph_as_text(defs)) + "\n"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOT.write_text(text)
    assert text == SNAPSHOT.read_text(), "if the change is meant: UPDATE_SNAPSHOTS=1 pytest tests/unit/dagster_project"


def test_every_table_has_owners_retries_and_a_code_version() -> None:
    for asset in defs.assets or ():
        if isinstance(asset, dg.AssetsDefinition):
            (spec,) = asset.specs
            assert spec.code_version, spec.key
            assert asset.op.retry_policy, spec.key
            assert spec.owners or spec.group_name == "marts", spec.key


def test_loading_the_definitions_waits_for_neither_great_expectations_nor_spark() -> None:
    script = (
        "import sys, dagster_project.definitions\n"
        "sys.exit(' '.join({'great_expectations', 'pyspark', 'py4j'} & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert done.stderr.strip() == ""
    assert done.returncode == 0


def test_the_definitions_are_short() -> None:
    folder = Path(dagster_project.definitions.__file__).parent
    lines = sum(len((folder / name).read_text().splitlines()) for name in ("definitions.py", "resources.py"))
    assert lines < 60


def test_new_offsets_start_runs() -> None:
    assert [sensor.name for sensor in defs.get_repository_def().sensor_defs] == ["new_offsets"]


def test_loading_the_definitions_opens_no_connection_and_starts_no_spark() -> None:
    script = (
        "import sys\n"
        "import dagster\n"
        "def refuse(event, arguments):\n"
        "    if event in {'socket.connect', 'subprocess.Popen'}: raise SystemExit(f'{event} {arguments}')\n"
        "sys.addaudithook(refuse)\n"
        "import dagster_project.definitions\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
