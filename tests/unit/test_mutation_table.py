"""The table of mutations follows the code: what the rota breaks is there to be broken."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/mutations"))

from mutation_table import MUTATIONS, Mutation  # noqa: E402


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.name)
def test_what_is_broken_stands_once_in_its_file(mutation: Mutation) -> None:
    assert (ROOT / mutation.file).read_text(encoding="utf-8").count(mutation.old) == 1
    assert mutation.new != mutation.old


def test_the_tests_that_notice_are_there() -> None:
    for mutation in MUTATIONS:
        for test in mutation.tests:
            file, _, name = test.partition("::")
            text = (ROOT / file).read_text(encoding="utf-8")
            assert f"def {name}(" in text or not name, (mutation.name, test)
