"""
What a reader of rows can ask for wrongly: each class has the status of its HTTP answer and a code within it.
"""

from collections.abc import Sequence
from typing import ClassVar

from fluvial.errors import FluvialError

_NAMES_SHOWN = 50


class ServeError(FluvialError):
    """
    A row cannot be given; `status` is that of HTTP, `code` the `error_code` of the answer.
    """

    status: ClassVar[int] = 500
    code: ClassVar[int] = 50001


class NoTableError(ServeError):
    """
    The warehouse has no table of this name.
    """

    status = 404
    code = 40401

    def __init__(self, name: str, known: Sequence[str]) -> None:
        more = f" and {len(known) - _NAMES_SHOWN} more" if len(known) > _NAMES_SHOWN else ""
        there = f"there are {', '.join(known[:_NAMES_SHOWN])}{more}" if known else "the warehouse is empty"
        super().__init__(f"no table {name[:200]!r}: {there}")


class NoVersionError(ServeError):
    """
    The table has no such version, or can no longer be read at it.
    """

    status = 404
    code = 40402


class NoRowError(ServeError):
    """
    No row of the table has the key.
    """

    status = 404
    code = 40403


class BadKeyError(ServeError):
    """
    A key does not fit the table's key columns.
    """

    status = 400
    code = 40001


class NoColumnError(ServeError):
    """
    The table has no such column.
    """

    status = 400
    code = 40002


class BadRequestError(ServeError):
    """
    What is asked for cannot be read.
    """

    status = 400
    code = 40003


class RefusedStatementError(ServeError):
    """
    The statement is none of those that are asked for others: one query of named tables.
    """

    status = 400
    code = 40004


class StatementFailedError(ServeError):
    """
    The engine has no answer to the statement.
    """

    status = 422
    code = 42201


class TookTooLongError(ServeError):
    """
    The statement was cancelled after the seconds that one may take.
    """

    status = 408
    code = 40801


class NoKeyError(ServeError):
    """
    It is not known which columns tell the rows of a table apart, or rows cannot be looked up by them.
    """

    status = 409
    code = 40901


class SeveralRowsError(ServeError):
    """
    Several rows have the key.
    """

    status = 409
    code = 40902


class StaleTableError(ServeError):
    """
    The table is of a kind that is answered about as its last commit left it.
    """

    status = 409
    code = 40903


class TooLargeError(ServeError):
    """
    More is asked for than is answered at once.
    """

    status = 413
    code = 41301


class BusyError(ServeError):
    """
    There is no room for this request now; the same may succeed later.
    """

    status = 503
    code = 50301


class UnreadableError(ServeError):
    """
    The table cannot be read as it is.
    """

    status = 503
    code = 50302
