"""
The check that Spark's Java is there, made before anything long starts.

`python -m fluvial.spark.java` says nothing when all is well, and one line on stderr otherwise. It needs the standard
library only, so that it runs before the project's environment is made.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fluvial.errors import FluvialError

# Spark 4.0 is built for 17 and 21; from 24 on the JVM has no security manager and Hadoop's client fails to start.
SUPPORTED_MAJORS = (17, 21)

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_INSTALLERS = (
    ("apt-get", "sudo apt-get install -y openjdk-17-jre-headless"),
    ("dnf", "sudo dnf install -y java-17-openjdk-headless"),
    ("zypper", "sudo zypper install -y java-17-openjdk-headless"),
    ("pacman", "sudo pacman -S --noconfirm jre17-openjdk-headless"),
    ("apk", "sudo apk add openjdk17-jre-headless"),
    ("brew", "brew install openjdk@17"),
)


class JavaError(FluvialError):
    """
    No Java that Spark runs on.
    """


@dataclass(frozen=True)
class Java:
    """
    The Java that Spark will start: its program and its major version.
    """

    program: Path
    major: int


def require_java(environ: Mapping[str, str] | None = None) -> Java:
    """
    The Java that Spark's launcher would take, or a :class:`JavaError` with the command that installs one.

    Looks where the launcher looks: `$JAVA_HOME/bin/java`, and without JAVA_HOME `java` on PATH.
    """
    environ = os.environ if environ is None else environ
    home = environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environ.get("PATH"))
    if found is None:
        raise JavaError(f"Spark needs Java 17 or 21 and there is no `java` on PATH: {_how_to_install(environ)}")
    try:
        status = Path(found).stat()
        answer = _version_of(found, (status.st_ino, status.st_size, status.st_mtime_ns))
    except (OSError, subprocess.TimeoutExpired) as error:
        where = f"JAVA_HOME={home}" if home else found
        raise JavaError(
            f"Spark needs Java 17 or 21, and {where} cannot be started ({error}): {_how_to_install(environ)}"
        ) from error
    match = _VERSION.search(answer.stderr) or _VERSION.search(answer.stdout)
    # A `java` that names no version is the macOS stub, or a broken install.
    if answer.returncode != 0 or match is None:
        raise JavaError(f"Spark needs Java 17 or 21, and {found} does not run: {_how_to_install(environ)}")
    major = int(match[1])
    if major not in SUPPORTED_MAJORS:
        raise JavaError(
            f"Spark needs Java 17 or 21, and {found} is Java {major}: {_how_to_install(environ)} and set JAVA_HOME"
        )
    return Java(program=Path(found), major=major)


@cache
def _version_of(program: str, made: tuple[int, ...]) -> subprocess.CompletedProcess[str]:
    """What a program says of its version; `made` tells it from another one at its place. It takes a JVM's start."""
    return subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=False)


def _how_to_install(environ: Mapping[str, str]) -> str:
    for program, command in _INSTALLERS:
        if shutil.which(program, path=environ.get("PATH")):
            return command
    return "install a Java 17 runtime (OpenJDK)"


def main() -> int:
    """
    Exit code 0 when Java is there; otherwise 1 and the repair on stderr.
    """
    try:
        require_java()
    except JavaError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
