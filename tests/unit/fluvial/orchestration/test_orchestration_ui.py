"""The command behind the web page."""

from dataclasses import replace
from pathlib import Path

import pytest

from fluvial.config import Settings
from fluvial.orchestration.run.code_location import (
    DEFAULT_MODULE,
    CodeLocationError,
    definitions_module,
    definitions_of,
    load_definitions,
)
from fluvial.orchestration.run.ui import ui_command


def test_the_page_is_served_here_only_from_the_home_of_the_data_directory(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ui_command(settings, port=3999)
    assert command.url == "http://127.0.0.1:3999"
    started = " ".join(command.argv[1:])
    assert started.startswith(f"-m fluvial.dagster_page dev -m {DEFAULT_MODULE} --host 127.0.0.1 --port 3999")
    assert command.environment["DAGSTER_HOME"] == str(settings.data_dir / "dagster")
    assert command.environment["FLUVIAL_WAREHOUSE"] == settings.warehouse
    assert "enabled: false" in (settings.data_dir / "dagster" / "dagster.yaml").read_text()


def test_a_code_server_is_given_longer_than_dagster_gives_it(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_GRPC_TIMEOUT_SECONDS", raising=False)
    assert int(ui_command(settings, port=3999).environment["DAGSTER_GRPC_TIMEOUT_SECONDS"]) > 60
    monkeypatch.setenv("DAGSTER_GRPC_TIMEOUT_SECONDS", "7")
    assert ui_command(settings, port=3999).environment["DAGSTER_GRPC_TIMEOUT_SECONDS"] == "7", "who says so decides"


def test_without_a_port_each_page_gets_a_free_one(settings: Settings) -> None:
    assert ui_command(settings).url.startswith("http://127.0.0.1:")


@pytest.mark.parametrize(
    "pyproject",
    [
        '[tool.dagster]\nmodule_name = "my.definitions"\n',
        '[tool.dg.project]\nroot_module = "my"\ncode_location_target_module = "my.definitions"\n',
    ],
)
def test_the_project_says_where_its_definitions_are(pyproject: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(pyproject)
    assert definitions_module(tmp_path) == "my.definitions"


def test_a_project_without_dagster_code_gets_the_assets_of_its_declarations(tmp_path: Path) -> None:
    assert definitions_module(tmp_path) == DEFAULT_MODULE
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "plain"\n')
    assert definitions_module(tmp_path) == DEFAULT_MODULE


def test_a_damaged_pyproject_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool")
    with pytest.raises(CodeLocationError, match=r"pyproject\.toml"):
        definitions_module(tmp_path)


def write_project(folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[tool.dagster]\nmodule_name = "shop_dagster"\n')
    (folder / "shop_dagster.py").write_text("import dagster as dg\n\ndefs = dg.Definitions()\n")
    (folder / "shop.py").write_text("from fluvial.tables import history\n\norders = history('orders')\n")


def test_the_definitions_are_the_directorys_unless_another_project_is_named(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert not definitions_of(settings).resolve_all_asset_keys()
    keys = definitions_of(replace(settings, project="shop")).resolve_all_asset_keys()
    assert {key.to_user_string() for key in keys} == {"topics/orders", "history/orders"}


@pytest.mark.parametrize(("module", "complaint"), [("no_such_module", "cannot be imported"), ("json", "no dagster")])
def test_a_module_without_definitions_is_named(module: str, complaint: str) -> None:
    with pytest.raises(CodeLocationError, match=complaint):
        load_definitions(module)
