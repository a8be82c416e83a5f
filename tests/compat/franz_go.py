"""
The integration tests of franz-go's client `kgo`, compiled from its Go module and run against a broker.

The module comes through Go's own proxy and checksum database at one pinned version. It is compiled where the module
cache keeps it, and the test program lies in the user's cache from then on.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

MODULE = "github.com/twmb/franz-go"
VERSION = "v1.21.3"
MODULE_SUM = "h1:q9Mo8ri+OwBQBjKqrerNCqNWJlJnUDe2qnYsj2V3hdI="

# Records that each chain of consumers and producers hands on.
RECORDS = 100_000
SECONDS_MAX = 900.0

# What go.mod of the module asks for. An older Go from 1.21 on fetches this one by itself unless it is told not to.
GO_MIN = (1, 25)
GO_FETCHES_ITSELF = (1, 21)

# `-test.v=test2json` puts this byte before every line that the framework writes, so no test's own output is mistaken.
_RESULT = re.compile(r"\x16 *--- (?P<outcome>PASS|FAIL|SKIP): (?P<name>\S+)")


class FranzGoError(RuntimeError):
    """The suite cannot be built here; the message says what to install or check."""


def program() -> Path:
    """Where the compiled tests lie once they are built."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "fluvial" / f"franz-go-{VERSION}" / "kgo.test"


def lacking() -> str | None:
    """What this machine lacks to build the suite, as a reason to skip; None when it can be built or is there."""
    if program().exists():
        return None
    if shutil.which("go") is None:
        return f"franz-go's tests need Go {_dotted(GO_MIN)} or newer, and there is no `go` on PATH"
    version, toolchain = subprocess.run(
        ["go", "env", "GOVERSION", "GOTOOLCHAIN"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    least = GO_MIN if toolchain == "local" else GO_FETCHES_ITSELF
    if found < least:
        return f"franz-go's tests need Go {_dotted(GO_MIN)} or newer, and `go` is {version}"
    return None


def require_program(say: Callable[[str], None] = lambda _line: None) -> Path:
    """
    Return the compiled tests, built first when this machine has not got them yet (about a minute).

    Raises FranzGoError.
    """
    built = program()
    if built.exists():
        return built
    if (lack := lacking()) is not None:
        raise FranzGoError(lack)
    say(f"building the tests of {MODULE} {VERSION} (once, about a minute) …")
    downloaded = _go("mod", "download", "-json", f"{MODULE}@{VERSION}", cwd=Path.home())
    module = json.loads(downloaded)
    if module["Sum"] != MODULE_SUM:
        raise FranzGoError(f"{MODULE} {VERSION} has the checksum {module['Sum']}, not {MODULE_SUM}")
    built.parent.mkdir(parents=True, exist_ok=True)
    unfinished = built.with_suffix(f".{os.getpid()}")
    _go("test", "-c", "-o", str(unfinished), "./pkg/kgo", cwd=Path(module["Dir"]))
    unfinished.rename(built)
    return built


def run(bootstrap_servers: str, folder: Path, *flags: str, records: int, timeout: float) -> dict[str, str]:
    """
    Run the compiled tests; return each test's outcome, PASS, FAIL or SKIP, by its name, sub-tests included.

    `flags` are those of Go's tests. `folder` receives `stdout` and `stderr`. A test that came to no end in `timeout`
    seconds is not among the outcomes. Raises FranzGoError when the program fails and no test did.
    """
    environ = {
        "KGO_LOG_LEVEL": "none",
        **os.environ,
        "KGO_SEEDS": bootstrap_servers,
        "KGO_TEST_RF": os.environ.get("KGO_TEST_RF", "1"),
        "KGO_TEST_RECORDS": str(records),
    }
    folder.mkdir(parents=True, exist_ok=True)
    command = [str(require_program()), "-test.v=test2json", f"-test.timeout={timeout:.0f}s", *flags]
    with (folder / "stdout").open("w") as out, (folder / "stderr").open("w") as err:
        done = subprocess.run(
            command, cwd=folder, env=environ, stdout=out, stderr=err, check=False, timeout=timeout + 60
        )
    text = (folder / "stdout").read_text(errors="replace")
    outcomes = {match["name"]: match["outcome"] for match in _RESULT.finditer(text)}
    if done.returncode != 0 and "FAIL" not in outcomes.values() and "panic: test timed out" not in text:
        raise FranzGoError(f"the tests ended with {done.returncode}: {text[-400:]}")
    return outcomes


def names(*, pattern: str = ".") -> list[str]:
    """The names of the tests that a pattern selects, sub-tests left out."""
    done = subprocess.run([str(require_program()), f"-test.list={pattern}"], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line.startswith("Test")]


def _go(*words: str, cwd: Path) -> str:
    done = subprocess.run(["go", *words], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise FranzGoError(f"`go {' '.join(words)}` failed: {(done.stderr or done.stdout).strip()[-400:]}")
    return done.stdout


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
