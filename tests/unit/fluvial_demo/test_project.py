"""The project of the demo, as it is written where the demo is run."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fluvial_demo import project

ROOT = Path(__file__).parents[3]


def test_a_new_folder_gets_the_project_and_keeps_what_is_changed_in_it(tmp_path: Path) -> None:
    assert project.ensure_project(tmp_path) == ["dagster_project", "pipelines", "pyproject.toml", "schemas"]
    (tmp_path / "schemas" / "weather_service" / "owner.toml").unlink()
    assert project.ensure_project(tmp_path) == []
    assert not (tmp_path / "schemas" / "weather_service" / "owner.toml").exists()


def test_its_definitions_load_from_there_alone(tmp_path: Path) -> None:
    project.ensure_project(tmp_path)
    code = (
        "import sys; from pathlib import Path\n"
        "from fluvial.orchestration.run.code_location import definitions_module, load_definitions\n"
        "defs = load_definitions(definitions_module(Path.cwd()))\n"
        "assert sys.modules['pipelines.flights.declarations'].__file__.startswith(str(Path.cwd()))\n"
        "print(*sorted(key.to_user_string() for key in defs.resolve_asset_graph().executable_asset_keys))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "state/aircraft" in done.stdout
    assert len(done.stdout.split()) == 10


def test_the_parts_are_what_the_repository_has_of_them() -> None:
    """The wheel is told the same parts in `pyproject.toml`."""
    included = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    place = "fluvial_demo/project/"
    parts = {part: to for part, to in included["force-include"].items() if to.startswith(place)}
    assert parts == {part: place + part for part in project.PARTS}
    tracked = subprocess.run(
        ["git", "ls-files", "pipelines", "schemas", "dagster_project"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    left_out = {name for name in tracked if not name.startswith(project.PARTS)}
    assert left_out == {"dagster_project/README.md"}


def test_dagster_finds_the_definitions_as_in_the_repository() -> None:
    of_repository = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["dg"]
    written = tomllib.loads(Path(project.__file__).with_name("project.toml").read_text())["tool"]["dg"]
    assert written == of_repository


@pytest.mark.parametrize("name", ["schemas", "pyproject.toml"])
def test_another_project_is_left_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    with pytest.raises(project.ProjectError, match=rf"has one of its own \({name}\): run it in a new folder"):
        project.ensure_project(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
