"""
Rows that hold for a time: the versions of a state, each from one moment until another.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """
    The columns `since` and `until` of such rows: a row holds from the one on and before the other, for ever where that
    is null. `said` are columns that tell no more than when it holds, such as whether it still does.
    """

    since: str
    until: str
    said: tuple[str, ...] = ()
