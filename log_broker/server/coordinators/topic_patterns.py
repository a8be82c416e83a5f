"""
Which names a client's regular expression matches: topics of a subscription, transactional ids of a list.

Kafka promises RE2's syntax, and a broker needs RE2's bound: an expression of a client must not be able to keep it busy,
as those of Python's `re` can. RE2 still takes the product of an expression's size, its repetitions written out, and the
length of a name, so both that size and the time for all names are bounded.
"""

import time
from collections.abc import Collection

import re2

from log_broker.errors import BrokerError, ErrorCode

PATTERN_CHARACTERS_MAX = 1_000
PROGRAM_BYTES_MAX = 1 << 17
SECONDS_MAX = 0.002  # of CPU time, and for each name
SECONDS_A_NAME = 0.000_01  # four times what a common expression takes

_OPTIONS = re2.Options()
_OPTIONS.max_mem = PROGRAM_BYTES_MAX
_OPTIONS.never_capture = True
_OPTIONS.log_errors = False


def match_names(regex: str, names: Collection[str], *, field: str = "SubscribedTopicRegex") -> frozenset[str]:
    """
    Return the names that match as a whole; raises BrokerError(INVALID_REGULAR_EXPRESSION).

    `field` is what the request calls the expression.
    """
    if len(regex) > PATTERN_CHARACTERS_MAX:
        raise _refused(f"{field} has {len(regex)} characters; {PATTERN_CHARACTERS_MAX} are taken at most.")
    until = time.thread_time() + SECONDS_MAX + SECONDS_A_NAME * len(names)
    try:
        matches = re2.compile(regex, _OPTIONS).fullmatch
    except re2.error as error:
        raise _refused(f"{field} `{regex}` is not a valid regular expression: {_text(error)}.") from None
    matched: set[str] = set()
    for name in names:
        if matches(name.encode()):  # of bytes it is three times as fast
            matched.add(name)
        if time.thread_time() > until:
            raise _refused(f"{field} `{regex}` takes too long to match {len(names)} names; write it without nested *.")
    return frozenset(matched)


def _text(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)


def _refused(reason: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_REGULAR_EXPRESSION, reason)
