"""The tables of a project by name in Unity Catalog: its own server, runs, and a reader that is not Spark."""

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from init_project import InitProject
from local_platform import wait_until

from tests.free_ports import free_ports_in_a_row
from tests.peers.python_programs import python_of
from tests.peers.unity_catalog import UnityCatalogError, UnityServer, require_server, unity_server

pytestmark = pytest.mark.rota  # the server, and starts of Spark

READ = """
import json, sys
import pyarrow
from deltalake import DeltaTable

print(json.dumps(pyarrow.table(DeltaTable(sys.argv[1]).scan()).to_pylist(), default=str))
"""


class Shop(InitProject):
    """Its tables are registered in a Unity Catalog."""

    def __init__(self, folder: Path, port: int) -> None:
        super().__init__(folder)
        self.port = port
        self.write_mart("")
        self.set(f'\n[catalog]\nunity = "http://127.0.0.1:{port}"\nname = "shop"\n')

    def register(self, **variables: str) -> "subprocess.CompletedProcess[str]":
        words = self.platform.command("table", "register", "--format", "json")
        environment = self.platform.environment() | variables
        return subprocess.run(
            words, cwd=self.folder, env=environment, capture_output=True, text=True, check=False, timeout=120
        )


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    try:
        require_server()
    except UnityCatalogError as error:
        pytest.skip(str(error))
    made = Shop(tmp_path_factory.mktemp("unity"), free_ports_in_a_row(2))
    made.platform.up()
    made.produce()
    yield made
    made.platform.down()


def columns_of(server: UnityServer, table: str) -> dict[str, str]:
    """The columns of a table as the catalog has them."""
    return {each["name"]: each["type_text"] for each in server.ask(f"/tables/shop.{table}").json()["columns"]}


def read_elsewhere(location: str) -> list[dict[str, Any]]:
    """The rows of a table as a program finds them that knows its location alone."""
    done = subprocess.run(
        [python_of("deltalake"), "-c", READ, location], capture_output=True, text=True, check=True, timeout=120
    )
    return list(json.loads(done.stdout))


def outcomes(done: "subprocess.CompletedProcess[str]") -> dict[str, str]:
    assert done.returncode == 0, done.stderr
    return {each["table"]: each["outcome"] for each in json.loads(done.stdout)}


def test_what_runs_make_is_found_by_name_also_after_the_catalog_was_away(shop: Shop, tmp_path: Path) -> None:
    # Nothing listens there: the run is as good as any, and says it in a line.
    away = shop.platform.run("run")
    (line,) = [line for line in away.stderr.splitlines() if "not registered" in line]
    assert "does not answer" in line
    assert "fluvial table register" in line
    assert shop.platform.versions() == {"state.customers": 0, "marts.spenders": 0}

    with unity_server(tmp_path, shop.port) as server:
        # The next run has nothing to do but that.
        again = shop.platform.run("run")
        assert "not registered" not in again.stderr
        assert shop.platform.versions() == {"state.customers": 0, "marts.spenders": 0}
        assert columns_of(server, "marts.spenders") == {"customer": "string", "spent": "double"}
        listed = server.ask("/tables?catalog_name=shop&schema_name=state").json()["tables"]
        assert [(each["name"], each["table_type"], each["data_source_format"]) for each in listed] == [
            ("customers", "EXTERNAL", "DELTA")
        ]
        rows = read_elsewhere(listed[0]["storage_location"])
        assert sum(each["orders"] for each in rows) == 200

        first = server.ask("/tables/shop.marts.spenders").json()
        shop.write_mart(', "orders"')
        shop.platform.run("run")
        assert columns_of(server, "marts.spenders") == {"customer": "string", "spent": "double", "orders": "bigint"}
        rows = read_elsewhere(first["storage_location"])
        assert sum(each["orders"] for each in rows) == 200

        # What has not changed is not touched.
        before = server.ask("/tables/shop.state.customers").json()
        assert outcomes(shop.register()) == {"marts.spenders": "up to date", "state.customers": "up to date"}
        assert server.ask("/tables/shop.state.customers").json() == before


def test_a_server_that_has_lost_everything_is_told_all_again(shop: Shop, tmp_path: Path) -> None:
    shop.platform.run("run")
    with unity_server(tmp_path, shop.port) as server:
        assert server.ask("/tables/shop.state.customers").status_code == 404
        assert set(outcomes(shop.register()).values()) == {"registered"}
        assert server.ask("/tables/shop.state.customers").status_code == 200


def test_several_that_register_the_same_at_once_leave_one_entry(shop: Shop, tmp_path: Path) -> None:
    shop.platform.run("run")
    with unity_server(tmp_path, shop.port) as server, ThreadPoolExecutor(4) as several:
        found = [outcomes(each) for each in several.map(lambda _: shop.register(), range(4))]
        told = [each["state.customers"] for each in found]
        assert sorted(told) == ["registered", *["up to date"] * 3]
        assert server.ask("/tables/shop.state.customers").status_code == 200


def test_a_table_of_somebody_else_stays_as_it_is(shop: Shop, tmp_path: Path) -> None:
    shop.platform.run("run")
    with unity_server(tmp_path, shop.port) as server:
        server.ask("/catalogs", "POST", name="shop")
        server.ask("/schemas", "POST", name="state", catalog_name="shop")
        others = {"name": "customers", "catalog_name": "shop", "schema_name": "state", "columns": []}
        kind = {"table_type": "EXTERNAL", "data_source_format": "DELTA"}
        place = (tmp_path / "elsewhere").as_uri()
        assert server.ask("/tables", "POST", **others, **kind, storage_location=place).status_code == 200
        before = server.ask("/tables/shop.state.customers").json()

        done = shop.register()
        assert done.returncode == 1
        assert "shop.state.customers is another table there" in done.stderr
        assert server.ask("/tables/shop.state.customers").json() == before
        # The others are registered all the same.
        assert server.ask("/tables/shop.marts.spenders").status_code == 200


def test_a_token_that_is_wrong_is_said_and_the_right_one_registers(shop: Shop, tmp_path: Path) -> None:
    shop.platform.run("run")
    with unity_server(tmp_path, shop.port, signed_in=True) as server:
        assert "asks for a token: FLUVIAL_CATALOG_TOKEN" in shop.register().stderr
        refused = shop.register(FLUVIAL_CATALOG_TOKEN="not-the-token")
        assert refused.returncode == 1
        assert "does not take the token: FLUVIAL_CATALOG_TOKEN" in refused.stderr
        assert "not-the-token" not in refused.stderr
        assert server.token is not None
        assert set(outcomes(shop.register(FLUVIAL_CATALOG_TOKEN=server.token)).values()) == {"registered"}


def test_tables_that_are_followed_are_registered_while_they_are(shop: Shop, tmp_path: Path) -> None:
    with unity_server(tmp_path, shop.port) as server:
        following = shop.platform.start("run", "--continuous")

        def is_there(table: str) -> bool:
            assert following.poll() is None, (shop.platform.data_dir / "started.log").read_text()
            return server.ask(f"/tables/shop.{table}").status_code == 200

        wait_until(lambda: is_there("state.customers") and is_there("marts.spenders"))
        following.terminate()
        assert following.wait(timeout=120) == 0
