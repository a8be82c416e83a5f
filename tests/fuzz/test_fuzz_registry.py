"""Random lives of a registry beside a model of the rules, a few of those that `make fuzz` tries."""

import pytest
from fuzz_registry import lives


@pytest.mark.parametrize("seed", [20_261, 20_262])
async def test_a_registry_lives_by_the_rules(seed: int) -> None:
    findings, statuses = await lives(seed, 4_000)
    assert not findings, "\n".join(findings)
    for expected in (
        ("register", 200),
        ("register", 409),
        ("register", 422),
        ("delete version", 422),
        ("look up", 200),
    ):
        assert statuses.get(expected), (expected, statuses)
