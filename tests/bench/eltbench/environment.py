"""
An environment of its own for LakeBench, in the user's cache: it pins versions of its own, and wants an older Spark.

Of the project it has what `pyproject.toml` names, as the lock pins it; the code is that of this checkout.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from fluvial.spark.cache import cache_folder

ROOT = Path(__file__).resolve().parents[3]
# Without the extra `spark`, which wants pyspark 3; deltalake is what the extra `sail` asks for.
OF_LAKEBENCH = ("lakebench==2.2.0", "deltalake==1.6.2")
EXTRAS = ("spark", "connect", "sql")
OF_TESTS = {"psutil"}
INSTALL_SECONDS_MAX = 1800


def requirements() -> list[str]:
    """Everything that is installed by name, each with its version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    named = {_name(each) for each in (*project["dependencies"], *(each for extra in EXTRAS for each in extras[extra]))}
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    lines = [line.removesuffix("\\").strip() for line in lock.splitlines() if re.match(r"[A-Za-z0-9]", line)]
    return [*OF_LAKEBENCH, *(line for line in lines if _name(line) in named | OF_TESTS)]


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def python() -> str:
    """The Python of the environment, which is made first where it is not there."""
    wanted = requirements()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    mark = hashlib.sha256("\n".join((version, *wanted)).encode()).hexdigest()[:12]
    folder = cache_folder("eltbench") / f"venv-{mark}"
    program, whole = str(folder / "bin" / "python"), folder / "WHOLE"
    if not whole.exists():
        print(
            f"installing {' '.join(OF_LAKEBENCH)} and what the lock pins into {folder} …", file=sys.stderr, flush=True
        )
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run((sys.executable, "-m", "venv", folder), check=True, timeout=INSTALL_SECONDS_MAX)
        pip = (program, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
        subprocess.run((*pip, *wanted), check=True, timeout=INSTALL_SECONDS_MAX)
        whole.touch()
    return program


def variables() -> dict[str, str]:
    """What a process of the environment is started with, so that the code is this checkout's."""
    paths = f"{ROOT / 'platform'}{os.pathsep}{ROOT}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLUVIAL_", "SPARK_", "PYSPARK"))}
    return kept | {"PYTHONPATH": paths}
