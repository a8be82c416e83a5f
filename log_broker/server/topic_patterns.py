"""
Which topics a subscription's regular expression stands for.

Kafka promises RE2's syntax, and a broker needs RE2's bound: an expression of a client must not be able to keep it busy,
as those of Python's `re` can. Arrow brings RE2; it is imported when the first such subscription comes.
"""

from collections.abc import Collection

from log_broker.errors import BrokerError, ErrorCode


def load_engine() -> None:
    """Import what `match_topics` needs, which takes some tenths of a second: not in the event loop."""
    import pyarrow.compute  # noqa: F401


def match_topics(regex: str, names: Collection[str]) -> frozenset[str]:
    """Return the names that match as a whole; raises BrokerError(INVALID_REGULAR_EXPRESSION)."""
    import pyarrow
    from pyarrow import compute

    candidates = pyarrow.array(list(names), pyarrow.string())
    try:
        found = compute.match_substring_regex(candidates, f"^(?:{regex})$")
    except pyarrow.ArrowInvalid as error:
        raise BrokerError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}.",
        ) from None
    return frozenset(candidates.filter(found).to_pylist())
