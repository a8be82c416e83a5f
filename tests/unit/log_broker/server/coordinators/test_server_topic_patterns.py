"""Regular expressions of clients: RE2's syntax, whole names, and a bound on what one costs."""

import subprocess
import sys

import pytest

from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.coordinators.topic_patterns import PATTERN_CHARACTERS_MAX, match_names

NAMES = [f"{name}-{number}" for name in ("orders", "Orders", "payments") for number in range(3)]
LONG = [f"{number:03}" + "ax.-" * 60 for number in range(100)]


@pytest.mark.parametrize(
    ("regex", "found"),
    [
        ("orders-.*", {"orders-0", "orders-1", "orders-2"}),
        ("(?i)orders-1", {"orders-1", "Orders-1"}),
        ("orders", set()),
        ("orders-0|pay.*2", {"orders-0", "payments-2"}),
        ("", set()),
    ],
)
def test_whole_names_match(regex: str, found: set[str]) -> None:
    assert match_names(regex, NAMES) == found


@pytest.mark.parametrize(
    ("regex", "says"),
    [
        ("(", "is not a valid regular expression: missing )"),
        ("(?=x)", "is not a valid regular expression"),
        ("x" * (PATTERN_CHARACTERS_MAX + 1), "1001 characters"),
        ("((a{100}){100}){100}", "is not a valid regular expression"),
        (("(.*.*.*){5,100}" * 60)[:PATTERN_CHARACTERS_MAX], "too large"),
        ("(.*.*.*){5,90}", "takes too long"),
    ],
)
def test_what_is_wrong_or_costs_too_much_is_refused(regex: str, says: str) -> None:
    with pytest.raises(BrokerError, match="TheField") as refused:
        match_names(regex, LONG, field="TheField")
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert says in str(refused.value)


def test_no_library_of_tables_comes_into_a_broker() -> None:
    """An expression of a few bytes once had pandas imported: 80 MB of memory, a second of processor time."""
    program = (
        "import sys; from log_broker.server import node; from log_broker.server.coordinators import topic_patterns; "
        "topic_patterns.match_names('a', ['a']); "
        "print([name for name in ('pandas', 'pyarrow', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
