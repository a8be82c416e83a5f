"""The `fluvial` command as its users run it: processes of its own, on free ports and a folder of their own."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from command_forks import forks

from tests.free_ports import free_ports_in_a_row

FLUVIAL = Path(sys.executable).parent / "fluvial"
TIMEOUT_SECONDS = 120
NODES_MAX = 5


@dataclass
class Cli:
    """The command in a working directory, with a data directory and ports that no other test uses."""

    cwd: Path
    port: int = field(default_factory=lambda: free_ports_in_a_row(2 * NODES_MAX))

    @property
    def registry_port(self) -> int:
        return self.port + NODES_MAX

    @property
    def data_dir(self) -> Path:
        return self.cwd / ".fluvial"

    @property
    def environment(self) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith("FLUVIAL_")}
        return own | {"NO_COLOR": "1", "COLUMNS": "160"}

    def run(self, *words: str, stdin: str | bytes = b"") -> "subprocess.CompletedProcess[str]":
        """Run `fluvial WORDS…` to its end."""
        given = stdin.encode() if isinstance(stdin, str) else stdin
        return forks().run(
            words, cwd=self.cwd, environment=self.environment, stdin=given, timeout_seconds=TIMEOUT_SECONDS
        )

    def ok(self, *words: str, stdin: str | bytes = b"") -> str:
        """Run a command that succeeds; return what it printed on stdout."""
        done = self.run(*words, stdin=stdin)
        assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def refused(self, *words: str, stdin: str | bytes = b"") -> str:
        """Run a command that fails with one clear line on stderr and nothing on stdout; return the line."""
        done = self.run(*words, stdin=stdin)
        assert done.returncode in (1, 2), f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert done.stdout == ""
        lines = done.stderr.splitlines()
        assert len(lines) == 1, done.stderr
        assert lines[0].startswith("error: ")
        return lines[0]

    def up(self, *more: str) -> None:
        """Start the platform in the background."""
        self.ok("up", "--detach", "--port", str(self.port), "--registry-port", str(self.registry_port), *more)

    def up_words(self) -> tuple[str, ...]:
        return ("up", "--detach", "--port", str(self.port), "--registry-port", str(self.registry_port))

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ok("status", "--json"))
        return found

    def pids(self) -> list[int | None]:
        return [node["pid"] for node in self.status()["nodes"]]

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        """Start a command that stays."""
        return subprocess.Popen(
            [str(FLUVIAL), *words],
            cwd=self.cwd,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def stop(one: Cli) -> None:
    if (one.data_dir / "platform.json").exists():
        for pid in filter(None, one.pids()):
            os.kill(pid, signal.SIGCONT)
        one.ok("down", "--timeout", "20")
