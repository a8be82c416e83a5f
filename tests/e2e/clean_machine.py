"""
A machine with Python and Java and nothing else: Debian's base in a folder, the wheel installed in it without a network.

Its file system is its own, and so is what it sees of mounts; its processes and ports are this machine's. Making one
needs root and `debootstrap`.
"""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from installed import WANTED, pins
from local_platform import ROOT, STEP_TIMEOUT_S
from package.package_build import build

from fluvial.spark.jars import installed_coordinates

SUITE = "bookworm"
PACKAGES = "python3,python3-venv,openjdk-17-jre-headless"
HOME = Path("/srv/user")
VENV = Path("/opt/fluvial")
WHEELS = Path("/opt/wheels")
# Mounts that end with the last process that sees them.
ENTER = 'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && root="$0" && exec chroot "$root" "$@"'


def why_none() -> str | None:
    """Say why there can be no such machine here; None where there can."""
    if os.geteuid():
        return "a clean machine is made by root"
    return None if shutil.which("debootstrap") else "debootstrap is not installed"


@dataclass(frozen=True, slots=True)
class CleanMachine:
    """The machine in the folder `root`."""

    root: Path

    def make(self) -> None:
        """Unpack Debian, build the wheel and install it there with all that it needs."""
        base = ("debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(self.root))
        subprocess.run(base, check=True, stdout=subprocess.DEVNULL, timeout=STEP_TIMEOUT_S)
        # As on every machine: Java asks for the address of its own.
        self._outside(Path("/etc/hosts")).write_text(f"127.0.0.1 localhost {socket.gethostname()}\n")
        home = self._outside(HOME)
        home.mkdir(parents=True)
        self._bring_wheels()
        # What a first run would fetch from Maven's repository.
        jars = installed_coordinates().folder
        kept = home / ".cache" / "fluvial" / jars.parent.name / jars.name
        shutil.copytree(jars, kept, symlinks=True)
        self.ok("python3", "-m", "venv", str(VENV))
        wanted = [word.replace("[all]", "fluvial[all]") for word in WANTED]
        self.ok("pip", "install", "--quiet", "--no-compile", "--no-index", "--find-links", str(WHEELS), *wanted)
        shutil.rmtree(self._outside(WHEELS))
        where = self.ok("python", "-c", "import fluvial, log_broker; print(fluvial.__file__, log_broker.__file__)")
        assert all(path.startswith(str(VENV)) for path in where.split()), where

    def workspace(self, name: str) -> Path:
        """An empty folder on the machine, by its path here."""
        folder = self._outside(HOME / name)
        folder.mkdir()
        return folder

    def started(self, *words: str, cwd: Path, more: Mapping[str, str] = {}) -> dict[str, Any]:
        """What `subprocess` is given to start a program on the machine in a folder of it."""
        settings = {
            "PATH": f"{VENV / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(HOME),
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
            "COLUMNS": "200",
            **{name: self._inside(value) for name, value in more.items()},
        }
        env = ("env", "-i", f"--chdir={self._inside(str(cwd))}", *(f"{name}={it}" for name, it in settings.items()))
        enter = ("unshare", "--mount", "sh", "-c", ENTER, str(self.root))
        return {"args": [*enter, *env, *words], "cwd": "/", "env": {"PATH": os.environ["PATH"]}}

    def ok(self, *words: str) -> str:
        """Run a program to its end; return what it printed on stdout."""
        done = subprocess.run(
            **self.started(*words, cwd=self._outside(HOME)),
            capture_output=True,
            text=True,
            timeout=STEP_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _bring_wheels(self) -> None:
        wheels = self._outside(WHEELS)
        wheels.mkdir(parents=True)
        wheel = build(ROOT, "wheel", wheels)
        constraints = pins(wheels / "pins.txt")
        wanted = [word.replace("[all]", f"{wheel}[all]") for word in WANTED]
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet")
        made = (*pip, *wanted, "--constraint", str(constraints), "--wheel-dir", str(wheels))
        subprocess.run(made, check=True, timeout=STEP_TIMEOUT_S)

    def _outside(self, path: Path) -> Path:
        return self.root / path.relative_to("/")

    def _inside(self, text: str) -> str:
        return text.removeprefix(str(self.root)) if text.startswith(str(self.root)) else text
