"""The wheel in a fresh virtual environment: what a user has after `pip install`, with nothing of the checkout in it."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from local_platform import ROOT, STEP_TIMEOUT_S
from package.package_build import build

from fluvial.spark.cache import cache_folder
from fluvial.spark.java import require_java

Done = subprocess.CompletedProcess[str]
# What the tutorial asks for.
WANTED = ("[all]", "dagster-dg-cli", "pytest")
# Of what Debian installs always, and what our programs and Spark's scripts may take.
EVERYWHERE = (
    *("awk", "basename", "bash", "cat", "chmod", "chown", "cp", "cut", "date", "df", "dirname", "du", "echo", "env"),
    *(
        "expr",
        "find",
        "getconf",
        "grep",
        "head",
        "hostname",
        "id",
        "ln",
        "ls",
        "mkdir",
        "mktemp",
        "mv",
        "nice",
        "nohup",
    ),
    *("readlink", "realpath", "rm", "rmdir", "sed", "setsid", "sh", "sleep", "sort", "stat", "tail", "tar", "test"),
    *("touch", "tr", "true", "uname", "wc", "which", "xargs"),
)


def pins(path: Path) -> Path:
    """Write the lock without its hashes, which a wheel that was just built has none of."""
    lock = (ROOT / "requirements.lock").read_text()
    found = re.findall(r"^([\w.-]+)(?:\[.*?\])?(==[^\\\n]+)", lock, re.MULTILINE)
    path.write_text("\n".join(map("".join, found)))
    return path


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment in `folder/venv` whose `fluvial` is the wheel's."""

    folder: Path

    @property
    def bin(self) -> Path:
        return self.folder / "venv" / "bin"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of somebody's shell on a machine that has Python and Java, and what every Linux has."""
        path = f"{self.bin}{os.pathsep}{self.folder / 'tools'}"
        return {
            "PATH": path,
            "HOME": str(self.folder / "home"),
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
            "COLUMNS": "200",
            "TZ": "UTC",
        }

    def workspace(self, name: str) -> Path:
        """An empty folder to work in."""
        folder = self.folder / name
        folder.mkdir()
        return folder

    def started(self, *words: str, cwd: Path, more: Mapping[str, str] = {}) -> dict[str, Any]:
        """What `subprocess` is given to start a program in a folder, as from a shell with the environment in it."""
        return {"args": words, "cwd": cwd, "env": {**self.environment, **more}}

    def run(self, *words: str, cwd: Path) -> Done:
        """Run a program of the environment to its end, whatever that is."""
        return self._run(str(self.bin / words[0]), *words[1:], cwd=cwd)

    def ok(self, *words: str, cwd: Path) -> str:
        """Run one that succeeds; return what it printed on stdout."""
        done = self.run(*words, cwd=cwd)
        assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def make(self, *, whole: bool) -> None:
        """
        Build the wheel and install it.

        Unless all is to be installed its dependencies are those of the lock, which stand in the environment of these
        tests: that one is behind the new one's on the path, and its programs are there by their names, as installing
        two gigabytes again takes longer than everything that is shown with them.
        """
        self._furnish()
        wheel = build(ROOT, "wheel", self.folder)
        done = self._run(sys.executable, "-m", "venv", str(self.folder / "venv"), cwd=self.folder)
        assert done.returncode == 0, done.stdout + done.stderr
        if whole:
            wanted = [word.replace("[all]", f"{wheel}[all]") for word in WANTED]
            self._pip(*wanted, "--constraint", str(pins(self.folder / "pins.txt")))
        else:
            self._pip("--no-deps", str(wheel))
            self._take_the_locked()
        where = self.ok(
            "python", "-c", "import fluvial, log_broker; print(fluvial.__file__, log_broker.__file__)", cwd=self.folder
        )
        assert all(path.startswith(str(self.folder / "venv")) for path in where.split()), where

    def _furnish(self) -> None:
        """Have the programs of every Linux, Java, and a home in which Spark's jars have been fetched already."""
        tools = self.folder / "tools"
        tools.mkdir()
        for name in EVERYWHERE:
            if (program := shutil.which(name)) is not None:
                (tools / name).symlink_to(program)
        (tools / "java").symlink_to(require_java().program)
        cache = self.folder / "home" / ".cache" / "fluvial"
        cache.mkdir(parents=True)
        (cache / "jars").symlink_to(cache_folder("jars"))
        (cache / "classes").touch()  # no folder: each of these homes would spend a minute on an archive of its own

    def _pip(self, *words: str) -> None:
        # With this user's settings of pip, and what it keeps.
        plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        pip = (str(self.bin / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *words)
        done = subprocess.run(
            pip, cwd=self.folder, env=plain, capture_output=True, text=True, timeout=STEP_TIMEOUT_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

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
