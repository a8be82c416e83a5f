"""fluvial's own sink keeps the strongest promise, whatever `fluvial certify` does to it."""

from pathlib import Path

import pytest

from fluvial.testing import certify
from fluvial.testing.sink_certifier import ATTACKS, Class

pytestmark = [pytest.mark.spark, pytest.mark.rota, pytest.mark.timeout(1200)]


def test_rows_and_offsets_in_one_delta_commit_are_exact() -> None:
    found = certify(f"{Path(__file__).with_name('delta_sink.py')}:DeltaTable")
    print(found)
    assert {each.attack for each in found.evidence} == ATTACKS.keys()
    assert found.verdict is Class.EXACTLY_ONCE, found
