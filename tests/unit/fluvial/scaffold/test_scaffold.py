"""A new project: which files it has, which names and folders are refused, and that its definitions are whole."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fluvial.config import load_settings
from fluvial.registry.contracts import load_contracts
from fluvial.scaffold import TEMPLATE, ScaffoldError, create_project

SHOWN = """
import dagster as dg
from orders_2026.definitions import defs
graph = defs.resolve_asset_graph()
print(sorted(key.to_user_string() for key in graph.get_all_asset_keys()))
print(sorted(key.name for key in graph.asset_check_keys))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "orders_2026"
    create_project(folder)
    return folder


def test_every_file_of_the_template_is_written_under_the_new_name(tmp_path: Path) -> None:
    written = create_project(tmp_path / "orders_2026")
    files = [path for path in (tmp_path / "orders_2026").rglob("*") if path.is_file()]
    assert sorted(tmp_path / "orders_2026" / path for path in written) == sorted(files)
    assert len(files) == len([path for path in TEMPLATE.rglob("*") if path.is_file() and path.suffix != ".pyc"])
    assert Path(".gitignore") in written
    assert Path("orders_2026/tables.py") in written
    assert not [path for path in files if "my_platform" in path.read_text() or "my_platform" in str(path)]


def test_the_project_says_where_its_tables_and_definitions_are(project: Path) -> None:
    assert load_settings(environ={}, directory=project).project == "orders_2026.tables"
    tools = tomllib.loads((project / "pyproject.toml").read_text())["tool"]
    assert tools["dg"]["project"]["code_location_target_module"] == "orders_2026.definitions"
    assert [contract.subject for contract in load_contracts(project / "schemas")] == ["orders-value"]


def test_the_definitions_show_contract_topic_table_and_check(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHOWN], cwd=project, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.stdout.splitlines() == [
        "['contracts/orders-value', 'state/customers', 'topics/orders']",
        "['sound_customers']",
    ], done.stderr


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("my-platform", "'my-platform' is no name for a Python package.*such as my_platform"),
        ("My Platform!", "such as my_platform"),
        ("2nd", "no digit first, such as my_platform"),
        ("class", "'class' is no name.*such as my_platform"),
        ("café", "is no name"),
        ("json", "'json' is taken by another module"),
        ("fluvial", "'fluvial' is taken"),
        ("schemas", "'schemas' is taken"),
    ],
)
def test_a_name_that_no_package_can_have_is_refused(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(ScaffoldError, match=says):
        create_project(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_an_empty_folder_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_data").mkdir()
    monkeypatch.chdir(tmp_path / "shop_data")
    assert Path("shop_data/tables.py") in create_project(Path())


def test_a_folder_that_holds_something_is_left_alone(project: Path) -> None:
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    with pytest.raises(ScaffoldError, match="is not empty: name a new folder"):
        create_project(project)
    assert {path: path.read_bytes() for path in project.rglob("*") if path.is_file()} == before


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(ScaffoldError, match="is a file"):
        create_project(tmp_path / "notes")
