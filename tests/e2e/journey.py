"""A user's environment and project: the wheel in a fresh virtual environment, and its `fluvial` in a new folder."""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dagster_page import served_by
from local_platform import ROOT, STEP_TIMEOUT_S, free_port

Done = subprocess.CompletedProcess[str]


@dataclass
class Journey:
    """The project in `folder`, whose commands are those of the installed wheel."""

    folder: Path
    name: str = "weather"
    port: int = field(default_factory=free_port)
    registry_port: int = field(default_factory=free_port)

    @property
    def project(self) -> Path:
        return self.folder / self.name

    @property
    def _bin(self) -> Path:
        return self.folder / "venv" / "bin"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a shell, without what these tests were started with."""
        ours = ("FLUVIAL_", "DAGSTER_", "PYTHON", "PYTEST_", "VIRTUAL_ENV")
        plain = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        path = f"{self._bin}{os.pathsep}{plain['PATH']}"
        return plain | {"PATH": path, "NO_COLOR": "1", "COLUMNS": "200", "TZ": "UTC"}

    def install(self) -> None:
        """
        Build the wheel and install it.

        Its dependencies are those of the lock, which stand in the environment of these tests: that one is behind the
        new one's on the path, as installing two gigabytes again would take longer than all of the journey.
        """
        self._call(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(self.folder), cwd=ROOT)
        (wheel,) = self.folder.glob("*.whl")
        self._call(sys.executable, "-m", "venv", str(self.folder / "venv"), cwd=self.folder)
        pip = (str(self._bin / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps")
        self._call(*pip, str(wheel), cwd=self.folder)
        (site,) = (self.folder / "venv" / "lib").glob("python*/site-packages")
        (site / "locked.pth").write_text(sysconfig.get_path("purelib"))

    def python(self, *words: str) -> str:
        """Run the environment's Python in the project; return its output."""
        return self._call(str(self._bin / "python"), *words, cwd=self.project).stdout

    def run(self, *words: str) -> Done:
        """Run `fluvial WORDS…` in the project to its end, whatever that is."""
        there = self.project if self.project.is_dir() else self.folder
        return self._run(str(self._bin / "fluvial"), *words, cwd=there)

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
        argv = (str(self._bin / "fluvial"), "ui", "--port", str(port))
        with served_by(argv, f"http://127.0.0.1:{port}", cwd=self.project, env=self.environment) as url:
            yield url

    def _call(self, *words: str, cwd: Path) -> Done:
        done = self._run(*words, cwd=cwd)
        assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def _run(self, *words: str, cwd: Path) -> Done:
        return subprocess.run(
            words,
            cwd=cwd,
            env=self.environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=STEP_TIMEOUT_S,
            check=False,
        )
