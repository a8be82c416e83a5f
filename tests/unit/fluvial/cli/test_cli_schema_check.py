"""`fluvial schema check` with something to say, in a new project and in this repository."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fluvial_command import Cli

from fluvial.scaffold import create_project
from fluvial.testing import EmbeddedPlatform, embedded_platform

pytestmark = pytest.mark.spark

REPOSITORY = Path(__file__).resolve().parents[4]
PLANES = REPOSITORY / "schemas" / "aircraft_registry" / "planes.avsc"


@pytest.fixture(scope="module")
def platform() -> Iterator[EmbeddedPlatform]:
    with embedded_platform() as running:
        yield running


def without_field(text: str, name: str) -> str:
    schema = json.loads(text)
    schema["fields"] = [field for field in schema["fields"] if field["name"] != name]
    return json.dumps(schema)


def test_in_a_new_project_with_dagster_code_and_a_suite(tmp_path: Path, platform: EmbeddedPlatform) -> None:
    shop = Cli(tmp_path / "my_shop")
    create_project(shop.cwd)
    platform.register(shop.cwd / "schemas")
    path = shop.cwd / "schemas" / "shop" / "orders.avsc"
    path.write_text(without_field(path.read_text(), "amount"))
    done = shop.run("schema", "check", "--registry-url", platform.registry_url)
    assert done.returncode == 1, done.stderr
    assert "orders-value: compatible" in done.stdout
    assert "state.customers" in done.stdout
    assert "amount" in done.stdout
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].endswith("not to be shipped like this")


def test_in_this_repository(tmp_path: Path, platform: EmbeddedPlatform) -> None:
    here = Cli(REPOSITORY)
    platform.register(REPOSITORY / "schemas")
    changed = tmp_path / "planes.avsc"
    changed.write_text(without_field(PLANES.read_text(), "manufacturer"))
    done = here.run(
        *("schema", "check", str(changed), "--subject", "planes-value", "--registry-url", platform.registry_url)
    )
    assert done.returncode in {0, 1}, done.stderr
    assert done.stdout.startswith("planes-value: compatible")
    assert "Traceback" not in done.stderr
