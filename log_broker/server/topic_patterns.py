"""
Which names a client's regular expression matches: topics of a subscription, transactional ids of a list.

Kafka promises RE2's syntax, and a broker needs RE2's bound: an expression of a client must not be able to keep it busy,
as those of Python's `re` can. Arrow brings RE2; it is imported when the first such expression comes.
"""

from collections.abc import Collection

from log_broker.errors import BrokerError, ErrorCode

PATTERN_CHARACTERS_MAX = 1_000  # RE2's time grows with the square of some patterns: 30,000 characters took 2.8 s


def load_engine() -> None:
    """Import what `match_names` needs, which takes some tenths of a second: not in the event loop."""
    import pyarrow.compute  # noqa: F401


def match_names(regex: str, names: Collection[str], *, field: str = "SubscribedTopicRegex") -> frozenset[str]:
    """
    Return the names that match as a whole; raises BrokerError(INVALID_REGULAR_EXPRESSION).

    `field` is what the request calls the expression.
    """
    if len(regex) > PATTERN_CHARACTERS_MAX:
        raise BrokerError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"{field} has {len(regex)} characters; {PATTERN_CHARACTERS_MAX} are taken at most.",
        )
    import pyarrow
    from pyarrow import compute

    candidates = pyarrow.array(list(names), pyarrow.string())
    try:
        found = compute.match_substring_regex(candidates, f"^(?:{regex})$")
    except pyarrow.ArrowInvalid as error:
        raise BrokerError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"{field} `{regex}` is not a valid regular expression: {error}.",
        ) from None
    return frozenset(candidates.filter(found).to_pylist())
