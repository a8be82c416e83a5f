"""A user's project in a new folder, made and used with an installed `fluvial`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dagster_page import served_by
from installed import Done, Installed

from tests.free_ports import free_port


@dataclass
class Journey:
    """The project in `folder`, whose commands are those of the installed wheel."""

    folder: Path
    installed: Installed
    name: str = "weather"
    port: int = field(default_factory=free_port)
    registry_port: int = field(default_factory=free_port)

    @property
    def project(self) -> Path:
        return self.folder / self.name

    def python(self, *words: str) -> str:
        """Run the environment's Python in the project; return its output."""
        return self.installed.ok("python", *words, cwd=self.project)

    def run(self, *words: str) -> Done:
        """Run `fluvial WORDS…` in the project to its end, whatever that is."""
        there = self.project if self.project.is_dir() else self.folder
        return self.installed.run("fluvial", *words, cwd=there)

    def ok(self, *words: str) -> str:
        """Run a command that succeeds; return what it printed on stdout."""
        done = self.run(*words)
        assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def up(self) -> None:
        self.ok("up", "--detach", "--port", str(self.port), "--registry-port", str(self.registry_port))

    @contextmanager
    def page(self) -> Iterator[str]:
        """`fluvial ui`, until it is interrupted; gives the page's URL."""
        port = free_port()
        argv = (str(self.installed.bin / "fluvial"), "ui", "--port", str(port))
        with served_by(argv, f"http://127.0.0.1:{port}", cwd=self.project, env=self.installed.environment) as url:
            yield url
