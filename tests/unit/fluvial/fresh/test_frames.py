"""Functions of pipelines that are called in another process, which may end or be ended."""

import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fluvial.fresh.frames import OtherProcess
from fluvial.fresh.marts import Call, Step
from fluvial.query.made_frames import OtherAnswerError
from fluvial.query.sail import Sail, SailError
from fluvial.tables import Declaration, Pipeline
from fluvial.tables.declare.project import load_project

pytest.importorskip("pysail", reason="Sail is an extra: fluvial[sql]")
pytest.importorskip("grpc", reason="Spark Connect is an extra: fluvial[connect]")

PROJECT = """
import os, time
from fluvial.tables import pipeline

print("what a project prints is no answer")


@pipeline(name="same", inputs=["state.numbers"], version="1")
def same(numbers):
    return numbers.select("n")


@pipeline(name="hashed", inputs=["state.numbers"], version="1")
def hashed(numbers):
    return numbers.selectExpr("hash(n) AS n")


@pipeline(name="deadly", inputs=["state.numbers"], version="1")
def deadly(numbers):
    os._exit(3)


@pipeline(name="endless", inputs=["state.numbers"], version="1")
def endless(numbers):
    while True:
        time.sleep(1)
"""


class Made:
    """A process that calls the project's functions, and what it makes."""

    def __init__(self, folder: Path, declarations: Mapping[str, Declaration]) -> None:
        self.folder = folder
        self.declarations = declarations
        self.sail = Sail([folder])
        self.frames = OtherProcess(project="called_project", memory_bytes=1 << 30)

    def call(self, name: str) -> Call:
        declaration = self.declarations[f"marts.{name}"]
        assert isinstance(declaration, Pipeline)
        return Call(declaration=declaration, step=Step.ALL)

    def rows(self, call: Any) -> list[Any]:
        path = self.sail.scratch / f"made-{threading.get_ident()}-{len(list(self.sail.scratch.iterdir()))}"
        self.frames.write(self.sail, "marts.made", call, ["SELECT 7 AS n"], path)
        return pq.read_table(path).to_pylist()


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    (tmp_path / "called_project.py").write_text(PROJECT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "called_project", raising=False)
    found = Made(tmp_path, load_project("called_project"))
    monkeypatch.delitem(sys.modules, "called_project", raising=False)
    yield found
    found.frames.close()
    found.sail.close()


def test_what_a_function_makes_is_there_whatever_others_did_before(made: Made) -> None:
    assert made.rows(made.call("same")) == [{"n": 7}]
    with pytest.raises(OtherAnswerError, match="hash is answered by Spark alone"):
        made.rows(made.call("hashed"))
    assert made.rows(made.call("same")) == [{"n": 7}]
    with pytest.raises(SailError, match="the process that calls its function has ended"):
        made.rows(made.call("deadly"))
    assert made.rows(made.call("same")) == [{"n": 7}]


def test_what_does_not_return_is_ended(made: Made) -> None:
    threading.Timer(2, made.frames.kill).start()
    with pytest.raises(SailError, match="the process that calls its function has ended"):
        made.rows(made.call("endless"))
    assert made.rows(made.call("same")) == [{"n": 7}]


def test_a_project_that_is_another_by_now_is_not_called(made: Made) -> None:
    class Changed(Call):
        def told(self) -> Mapping[str, Any]:
            return {**super().told(), "code": "another"}

    call = made.call("same")
    with pytest.raises(SailError, match="the project has changed since this process began"):
        made.rows(Changed(declaration=call.declaration, step=call.step))
