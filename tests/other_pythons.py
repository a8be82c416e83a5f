"""
The unit tests on the other Pythons that the package names, as far as this machine has them.

    python tests/other_pythons.py                        all of them: those that need neither Spark nor whole processes
    python tests/other_pythons.py 3.13 tests/unit/fluvial  one, some tests

Each gets an environment of its own in the user's cache, with what the lock pins.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from rota import LEFT_OUT

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
_VERSION = re.compile(r"3\.\d+")


def main(words: list[str]) -> int:
    """Return the status of the first Python whose tests fail; LEFT_OUT where there is no other Python."""
    asked = [word for word in words if _VERSION.fullmatch(word)]
    tests = [word for word in words if word not in asked] or ["tests/unit"]
    found = {version: program for version in asked or others() if (program := python_of(version)) is not None}
    for version in [version for version in asked or others() if version not in found]:
        print(f"Python {version} is not on PATH: left out", flush=True)
    if not found:
        return LEFT_OUT
    for version, program in found.items():
        print(f"Python {version}", flush=True)
        python = environment_of(version, program)
        words = ("-q", "-n2", "--dist", "loadfile", "-p", "no:cacheprovider", "-m", "not spark and not e2e")
        pytest = (python, "-m", "pytest", *words, *tests)
        paths = f"{ROOT}{os.pathsep}{ROOT / 'platform'}"
        status = subprocess.run(pytest, cwd=ROOT, env=os.environ | {"PYTHONPATH": paths}, check=False).returncode
        if status:
            return status
    return 0


def others() -> list[str]:
    """The versions that `pyproject.toml` names, without this one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = (each.rpartition(" :: ")[2] for each in project["classifiers"] if ":: Python :: 3." in each)
    return [version for version in named if version != f"{sys.version_info.major}.{sys.version_info.minor}"]


def python_of(version: str) -> Path | None:
    """The program of a version: on PATH, or among those of pyenv, whose stand-ins on PATH start only what is chosen."""
    found = shutil.which(f"python{version}")
    if found is not None and Path(found).parent.name != "shims":
        return Path(found)
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    return max(root.glob(f"versions/{version}.*/bin/python{version}"), default=None)


def environment_of(version: str, program: Path) -> str:
    """The Python of an environment with what the lock pins, made first where it is not there."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fluvial" / "pythons"
    folder = base / f"{version}-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]}"
    python = str(folder / "bin" / "python")
    whole = folder / "WHOLE"
    if not whole.exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run((program, "-m", "venv", folder), check=True)
        pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
        subprocess.run((*pip, "--require-hashes", "-r", LOCK), check=True)
        subprocess.run((*pip, "--no-deps", "--no-build-isolation", "--editable", ROOT), check=True)
        whole.touch()
    return python


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
