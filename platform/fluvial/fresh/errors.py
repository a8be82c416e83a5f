"""
Why there is no fresh answer.
"""

from fluvial.errors import FluvialError


class FreshError(FluvialError):
    """
    A table cannot be brought up to its topic's end now; the text says what would help.
    """


class StaleError(FluvialError):
    """
    A table is of a kind that is answered as its last commit left it; the text says why.
    """
