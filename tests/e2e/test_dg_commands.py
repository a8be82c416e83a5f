"""Dagster's own command `dg`, from a shell, in a project that `fluvial init` has just made and in this repository."""

import json
import os
import subprocess
import sys
from pathlib import Path

from fluvial.scaffold import create_project

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
COMPONENTS = "fluvial.orchestration.components"


def dg(folder: Path, *words: str) -> str:
    """What a command of `dg` says when it is given in a folder; it must succeed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FLUVIAL_", "DAGSTER_"))}
    done = subprocess.run(
        [str(BIN / "dg"), *words], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, f"dg {' '.join(words)}: {done.stdout}\n{done.stderr}"
    return done.stdout


def test_a_component_is_scaffolded_checked_and_listed_in_a_new_project(tmp_path: Path) -> None:
    project = tmp_path / "shop_of_mine"
    create_project(project)
    (project / "shop_of_mine" / "spending.py").write_text(
        "def spend(state, events):\n    return {'spent': sum(event['amount'] for event in events)}\n"
    )
    asked = ("--topic", "orders", "--key", "customer", "--reduce", "shop_of_mine.spending:spend")
    dg(project, "scaffold", "defs", f"{COMPONENTS}.State", "spending", *asked, "--returns", "spent DOUBLE")
    written = (project / "shop_of_mine" / "defs" / "spending" / "defs.yaml").read_text()
    assert f"type: {COMPONENTS}.State" in written
    assert "topic: orders" in written
    for component, attributes in [
        ("History", "topic: orders"),
        ("Publication", "{table: state.orders, topic: spending, key: customer}"),
    ]:
        (project / "shop_of_mine" / "defs" / component).mkdir()
        text = f"type: {COMPONENTS}.{component}\nattributes:\n  {attributes}\n"
        (project / "shop_of_mine" / "defs" / component / "defs.yaml").write_text(text)
    dg(project, "check", "yaml")
    listed = json.loads(dg(project, "list", "defs", "--json"))
    tables = {asset["asset_key"]: sorted(asset["kinds"]) for asset in listed["assets"]}
    assert tables == {
        "contracts/orders-value": ["avro"],
        "topics/orders": ["kafka"],
        "history/orders": ["delta", "spark"],
        "state/customers": ["delta", "spark"],
        "state/orders": ["delta", "spark"],
        "topics/spending": ["kafka", "spark"],
    }
    assert [check["key"] for check in listed["asset_checks"]] == ["state/customers:sound_customers"]
    assert [sensor["name"] for sensor in listed["sensors"]] == ["new_offsets"]


def test_dg_knows_the_components_and_finds_nothing_wrong_with_the_reference_project() -> None:
    found = {component["key"] for component in json.loads(dg(ROOT, "list", "components", "--json"))["items"]}
    ours = {key.removeprefix(f"{COMPONENTS}.") for key in found if key.startswith(COMPONENTS)}
    assert ours == {"Compacted", "History", "Pipeline", "Project", "Publication", "Sources", "Spark", "State"}
    dg(ROOT, "check", "defs")
