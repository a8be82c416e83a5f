"""A project as `fluvial init` makes it, on a platform of its own."""

import subprocess
from pathlib import Path

from local_platform import FLUVIAL, LocalPlatform

MART = """

from fluvial.tables import pipeline


@pipeline(name="spenders", inputs=["state.customers"])
def spenders(customers):
    return customers.select("customer", "spent"{more})
"""


class InitProject:
    """The project `shop` in a folder; its platform has one broker and is not up yet."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([FLUVIAL, "init", "shop"], cwd=folder, check=True, capture_output=True)
        self.folder = folder / "shop"
        self.platform = LocalPlatform(self.folder / ".fluvial", folder=self.folder, brokers=1)
        self._tables = (self.folder / "shop" / "tables.py").read_text()

    def set(self, lines: str) -> None:
        """Add lines to its settings."""
        with (self.folder / "fluvial.toml").open("a") as settings:
            settings.write(lines)

    def declare(self, code: str) -> None:
        """Have it declare tables beside its own, in the place of those that were declared so before."""
        (self.folder / "shop" / "tables.py").write_text(self._tables + code)

    def write_mart(self, more: str) -> None:
        """Declare marts.spenders, with `more` columns."""
        self.declare(MART.format(more=more))

    def produce(self) -> None:
        """Produce its orders."""
        environment = self.platform.environment() | {
            "FLUVIAL_BOOTSTRAP_SERVERS": f"127.0.0.1:{self.platform.port}",
            "FLUVIAL_REGISTRY_URL": f"http://127.0.0.1:{self.platform.registry_port}",
        }
        python = FLUVIAL.with_name("python")
        subprocess.run([python, "produce.py"], cwd=self.folder, env=environment, check=True, capture_output=True)
