"""The check for Java, over stand-ins for the `java` program."""

import subprocess
import sys
from pathlib import Path

import pytest

from fluvial.spark.java import JavaError, require_java


def environ(folder: Path, banner: str | None, *, home: bool = False, exit_code: int = 0) -> dict[str, str]:
    """An environment in which `java -version` prints `banner`; without one there is no java."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    if banner is not None:
        program = bin_folder / "java"
        program.write_text(f"#!/bin/sh\necho '{banner}' >&2\nexit {exit_code}\n")
        program.chmod(0o755)
    return {"JAVA_HOME": str(folder), "PATH": ""} if home else {"PATH": str(bin_folder)}


@pytest.mark.parametrize("home", [False, True])
@pytest.mark.parametrize(("banner", "major"), [('openjdk version "17.0.15" 2025', 17), ('java version "21"', 21)])
def test_17_and_21_will_do(tmp_path: Path, banner: str, major: int, home: bool) -> None:
    java = require_java(environ(tmp_path, banner, home=home))
    assert (java.major, java.program) == (major, tmp_path / "bin" / "java")


@pytest.mark.parametrize(
    ("banner", "major"), [('openjdk version "1.8.0_402"', 8), ('openjdk version "11.0.2"', 11), ('version "24"', 24)]
)
def test_another_java_is_named(tmp_path: Path, banner: str, major: int) -> None:
    with pytest.raises(JavaError, match=f"is Java {major}: "):
        require_java(environ(tmp_path, banner))


def test_no_java_comes_with_the_command_that_installs_it(tmp_path: Path) -> None:
    nowhere = environ(tmp_path, None)
    apt = tmp_path / "bin" / "apt-get"
    apt.write_text("#!/bin/sh\n")
    apt.chmod(0o755)
    with pytest.raises(JavaError) as raised:
        require_java(nowhere)
    assert "no `java` on PATH: sudo apt-get install -y openjdk-17" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_java_home_without_java_and_a_java_that_fails(tmp_path: Path) -> None:
    with pytest.raises(JavaError, match=f"JAVA_HOME={tmp_path / 'gone'} cannot be started"):
        require_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": ""})
    with pytest.raises(JavaError, match="does not run"):
        require_java(environ(tmp_path, "Unable to locate a Java Runtime", exit_code=1))


def test_the_program_says_one_line_and_fails(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fluvial.spark.java"]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
