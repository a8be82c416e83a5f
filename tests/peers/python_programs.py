"""
Other people's programs in Python, each in an environment of its own: what they need would not fit beside what we need.

They are installed once into the user's cache, at the versions named here, and used from there.
"""

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

PROGRAMS: dict[str, tuple[str, ...]] = {
    # S3 as a server; its extra `server` would bring five times as much.
    "moto": ("moto==5.2.5", "flask==3.1.3", "flask-cors==6.0.5", "PyYAML==6.0.4", "py-partiql-parser==0.6.3"),
    # Readers of Delta tables that are not Spark.
    "deltalake": ("deltalake==1.6.6", "pyarrow==26.0.1"),
    "polars": ("polars==2.1.0", "deltalake==1.6.6", "pyarrow==26.0.1"),
    "kubernetes-validate": ("kubernetes-validate==1.37.0",),
}
_INSTALL_SECONDS_MAX = 600


class ProgramError(RuntimeError):
    """A program cannot be installed here; the message is pip's."""


def python_of(program: str) -> Path:
    """
    Return the Python of a program's environment, made first where this machine has not got it.

    Raises ProgramError. Of two that make it at once the first to end wins.
    """
    requirements = PROGRAMS[program]
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fluvial" / "programs"
    folder = base / f"{requirements[0].replace('==', '-')}-py{sys.version_info.major}{sys.version_info.minor}"
    if not folder.exists():
        base.mkdir(parents=True, exist_ok=True)
        # Its Python finds its packages wherever it lies, so that a whole one is put in place in one step.
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=base) as scratch:
            made = Path(scratch) / "venv"
            _install(made, requirements)
            try:
                made.rename(folder)
            except OSError:
                if not (folder / "bin").exists():
                    raise
    return folder / "bin" / "python"


def _install(folder: Path, requirements: tuple[str, ...]) -> None:
    venv.create(folder, with_pip=True, symlinks=True)
    done = subprocess.run(
        [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements],
        capture_output=True,
        text=True,
        timeout=_INSTALL_SECONDS_MAX,
        check=False,
    )
    if done.returncode != 0:
        raise ProgramError(f"{requirements[0]} is not installed: {done.stderr.strip()[-500:]}")
