"""The wheel in a fresh virtual environment: what a user has after `pip install`, with nothing of the checkout in it."""

import os
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from local_platform import ROOT, STEP_TIMEOUT_S

Done = subprocess.CompletedProcess[str]
# What the tutorial asks for.
WANTED = ("[all]", "dagster-dg-cli", "pytest")


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment in `folder/venv` whose `fluvial` is the wheel's."""

    folder: Path

    @property
    def bin(self) -> Path:
        return self.folder / "venv" / "bin"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a shell, without what these tests were started with."""
        ours = ("FLUVIAL_", "DAGSTER_", "PYTHON", "PYTEST_", "VIRTUAL_ENV")
        plain = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        path = f"{self.bin}{os.pathsep}{plain['PATH']}"
        return plain | {"PATH": path, "NO_COLOR": "1", "COLUMNS": "200", "TZ": "UTC"}

    def run(self, *words: str, cwd: Path) -> Done:
        """Run a program of the environment to its end, whatever that is."""
        return self._run(str(self.bin / words[0]), *words[1:], cwd=cwd)

    def ok(self, *words: str, cwd: Path) -> str:
        """Run one that succeeds; return what it printed on stdout."""
        done = self.run(*words, cwd=cwd)
        assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def make(self, wheel: Path, *, whole: bool) -> None:
        """
        Install the wheel.

        Unless all is to be installed its dependencies are those of the lock, which stand in the environment of these
        tests: that one is behind the new one's on the path, and its programs are there by their names, as installing
        two gigabytes again takes longer than everything that is shown with them.
        """
        # The pip of these tests installs: one in there is four seconds of unpacking.
        done = self._run(sys.executable, "-m", "venv", "--without-pip", str(self.folder / "venv"), cwd=self.folder)
        assert done.returncode == 0, done.stdout + done.stderr
        if whole:
            wanted = [word.replace("[all]", f"{wheel}[all]") for word in WANTED]
            self._pip(*wanted, "--constraint", str(self._pins()))
        else:
            self._pip("--no-deps", str(wheel))
            self._take_the_locked()
        where = self.ok(
            "python", "-c", "import fluvial, log_broker; print(fluvial.__file__, log_broker.__file__)", cwd=self.folder
        )
        assert all(path.startswith(str(self.folder / "venv")) for path in where.split()), where

    def _pip(self, *words: str) -> None:
        pip = (sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "--disable-pip-version-check")
        done = self._run(*pip, "install", "--quiet", *words, cwd=self.folder)
        assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"

    def _pins(self) -> Path:
        """The lock without its hashes, which a wheel that was just built has none of."""
        lock = (ROOT / "requirements.lock").read_text()
        pins = re.findall(r"^([\w.-]+)(?:\[.*?\])?(==[^ \\]+)", lock, re.MULTILINE)
        path = self.folder / "pins.txt"
        path.write_text("\n".join(map("".join, pins)))
        return path

    def _take_the_locked(self) -> None:
        (site,) = (self.folder / "venv" / "lib").glob("python*/site-packages")
        (site / "locked.pth").write_text(sysconfig.get_path("purelib"))
        for program in entry_points(group="console_scripts"):
            script = self.bin / program.name
            if not script.exists():
                module, _, function = program.value.partition(":")
                name = function.partition("[")[0].strip()
                script.write_text(
                    f"#!{self.bin / 'python'}\nimport sys\nfrom {module} import {name.partition('.')[0]}\n"
                    f"sys.exit({name}())\n"
                )
                script.chmod(0o755)

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
