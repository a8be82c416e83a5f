"""A copy in processes: one disk is lost, which three copies survive and one does not; nothing is left behind."""

import tempfile
from pathlib import Path

import pytest

from fluvial.rehearsal.plan import Fault, Shape, Verdict
from fluvial.rehearsal.rehearse import rehearse

SHAPES = (
    Shape(name="rehearsal-0", topics=("orders",), replicas=3, settings={"min.insync.replicas": "2"}),
    Shape(name="rehearsal-1", topics=("clicks",), replicas=1),
)


def test_a_lost_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lines: list[str] = []
    outcomes = list(rehearse(SHAPES, brokers=3, settings={}, faults=[Fault.DISK_LOST], say=lines.append))
    durable, single = outcomes
    assert (durable.verdict, durable.lost) == (Verdict.SURVIVED, 0)
    assert durable.acknowledged > 0
    assert single.verdict is Verdict.LOST
    assert 0 < single.lost < single.acknowledged
    assert single.paused_seconds is None
    assert lines[0] == "starting a copy of 3 nodes, with topics of 2 shapes"
    assert list(tmp_path.iterdir()) == []
