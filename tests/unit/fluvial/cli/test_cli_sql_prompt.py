"""`fluvial sql` on a terminal, at its prompt; no Spark runs."""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hand_written_table import HandWrittenTable

from fluvial.cli.run.sql_prompt import candidates
from fluvial.config import Settings
from fluvial.query.engine import Door

pytest.importorskip("pysail", reason="Sail is an extra: fluvial[sql]")

PATIENCE_S = 120
WHERE_IS_THE_CURSOR, HERE = b"\x1b[6n", b"\x1b[1;1R"


class Terminal:
    """A terminal that a command runs on."""

    def __init__(self, words: list[str], folder: Path) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fluvial", *words],
            cwd=folder,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "120"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = b""

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def wait_for(self, text: str) -> None:
        """Read on until the text has been shown, which is then forgotten with all before it."""
        until = time.monotonic() + PATIENCE_S
        while text.encode() not in self.shown:
            assert time.monotonic() < until, self.shown.decode(errors="replace")
            if select.select([self._ours], [], [], 0.2)[0]:
                read = os.read(self._ours, 1 << 16)
                if WHERE_IS_THE_CURSOR in read:
                    os.write(self._ours, HERE)
                self.shown += read
        self.shown = self.shown.partition(text.encode())[2]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    table = HandWrittenTable(tmp_path / "w" / "state" / "people", {"customer": pa.string(), "spent": pa.int64()})
    table.commit([("ada", 7), ("bob", 8)])
    return tmp_path / "w"


@pytest.fixture
def terminal(warehouse: Path) -> Iterator[Terminal]:
    terminal = Terminal(["sql", "--warehouse", str(warehouse)], warehouse.parent)
    yield terminal
    terminal.close()


def test_statements_are_answered_until_the_user_leaves(terminal: Terminal) -> None:
    terminal.wait_for("fluvial>")
    terminal.type("select customer as who, spent / 16 as much\rfrom state.people where spent > 7;\r")
    terminal.wait_for("0.5 ")
    terminal.wait_for("state.people version 0")
    terminal.type("\\d state.people\r")
    terminal.wait_for("bigint")
    terminal.type("select * from state.nobody;\r")
    terminal.wait_for("error: no table state.nobody; there are: state.people")
    terminal.type("\\format csv\r")
    terminal.type("select count(*) as people from state.people;\r")
    terminal.wait_for("people\r\n2\r\n")
    terminal.type("\\q\r")
    assert terminal.process.wait(PATIENCE_S) == 0


def test_names_are_completed(warehouse: Path) -> None:
    door = Door(settings=Settings(warehouse=str(warehouse)), ask_spark=lambda _: None, say=lambda _: None)
    try:
        assert "state.people" in candidates(door, "select * from st", "st")
        assert "spent" in candidates(door, "select sp from state.people", "sp")
        assert "spent" not in candidates(door, "select sp", "sp")
        assert candidates(door, "sel", "sel") == ["select"]
    finally:
        door.close()
