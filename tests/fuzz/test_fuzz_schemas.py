"""Schemas whose cost is out of proportion, a few of those that `make fuzz` tries."""

import gc
import tracemalloc
from collections.abc import Iterator

import pytest
from fuzz_schemas import SchemaFuzzer, search

CASES = 60


@pytest.fixture(autouse=True)
def _others_objects_left_alone() -> Iterator[None]:
    """Collecting garbage among all that other tests have left would be counted as the time of a schema."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("seed", [20_261, 20_262])
def test_no_schema_costs_more_than_the_bounds(seed: int) -> None:
    report = search(seed, CASES)
    assert not report.findings, "\n".join(report.findings)
    assert report.parsed > CASES / 3, report
    assert report.compared > CASES / 2, report
    assert not tracemalloc.is_tracing()


def test_a_case_is_the_same_each_time() -> None:
    assert [SchemaFuzzer(1).case(index) for index in range(20)] == [SchemaFuzzer(1).case(index) for index in range(20)]
