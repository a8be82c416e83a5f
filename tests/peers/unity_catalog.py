"""
Unity Catalog's own server, from its Maven artifact, with a database in its memory.

It is fetched once into the user's cache; where Maven does not have it, the tests that need it are left out.
"""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.peers.kafka_jars import KafkaJarsError, cache_folder, fetched

VERSION = "0.6.0"
ARTIFACTS = (f"io.unitycatalog:unitycatalog-server:{VERSION}", "org.apache.logging.log4j:log4j-core:2.25.3")
START_SECONDS_MAX = 120.0

_DATABASE = """hibernate.connection.driver_class=org.h2.Driver
hibernate.connection.url=jdbc:h2:mem:uc;DB_CLOSE_DELAY=-1
hibernate.hbm2ddl.auto=update
"""
_OPEN = "server.env=dev\n"
_SIGNED_IN = f"""{_OPEN}server.authorization=enable
server.allowed-issuers=https://issuer.invalid
server.audiences=fluvial
"""


class UnityCatalogError(RuntimeError):
    """The server cannot be had here; the message says why."""


def require_server() -> Path:
    """Return the folder of the server's jars, fetched first where it has to be. Raises UnityCatalogError."""
    folder = cache_folder(f"unitycatalog-{VERSION}")
    if shutil.which("java") is None or shutil.which("mvn") is None:
        raise UnityCatalogError("Unity Catalog's server needs Java 17 and Maven")
    try:
        return fetched(folder, ARTIFACTS, f"Unity Catalog {VERSION}")
    except KafkaJarsError as error:
        raise UnityCatalogError(str(error)) from error


@dataclass(frozen=True, slots=True)
class UnityServer:
    """A server that runs, and who may do everything there, where it asks."""

    url: str
    token: str | None = None

    def ask(self, path: str, method: str = "GET", **content: object) -> "httpx.Response":
        """Ask its REST API, as another program does."""
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        where = f"{self.url}/api/2.1/unity-catalog{path}"
        return httpx.request(method, where, json=content or None, headers=headers, timeout=30)


@contextmanager
def unity_server(folder: Path, port: int, *, signed_in: bool = False) -> Iterator[UnityServer]:
    """Run a server that keeps nothing, on `port` and the one after it; `signed_in` has it ask for tokens."""
    settings = folder / "etc" / "conf"
    settings.mkdir(parents=True, exist_ok=True)
    (settings / "server.properties").write_text(_SIGNED_IN if signed_in else _OPEN)
    (settings / "hibernate.properties").write_text(_DATABASE)
    command = ["java", "-Xmx512m", "-cp", f"{require_server()}/*", "io.unitycatalog.server.UnityCatalogServer"]
    with (
        (folder / "server.log").open("w") as log,
        subprocess.Popen([*command, "-p", str(port)], cwd=folder, stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_it_answers(url, process)
            yield UnityServer(url, (settings / "token.txt").read_text().strip() if signed_in else None)
        finally:
            process.kill()


def _wait_until_it_answers(url: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while process.poll() is None and time.monotonic() < deadline:
        try:
            httpx.get(f"{url}/api/2.1/unity-catalog/catalogs", timeout=5)
        except httpx.TransportError:
            time.sleep(0.2)
        else:
            return
    raise UnityCatalogError(f"the server did not come up: {process.poll()}")
