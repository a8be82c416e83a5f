"""
Rows by key with what the log holds behind their table: a statement each, for its events have to be folded into it.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fluvial.errors import FluvialError
from fluvial.query.engine import Answer
from fluvial.query.versions import At, Version
from fluvial.serve.errors import BadRequestError, RefusedStatementError
from fluvial.serve.sql import Asked, Statements
from fluvial.serve.table import Row, View, demand_fresh


class FreshRows:
    """
    Looks rows up by statements; None gives none.
    """

    def __init__(self, statements: Statements | None) -> None:
        self._statements = statements

    async def row(
        self,
        view: View,
        key: Sequence[Any],
        columns: Sequence[str] | None,
        at_least: Sequence[str],
        gone: Callable[[], Coroutine[Any, Any, None]],
    ) -> tuple[Row | None, Version]:
        """
        The row with a key, None where there is none, and the version that it is of with the offsets in it.

        Raises :class:`~fluvial.serve.errors.ServeError`.
        """
        if self._statements is None:
            raise RefusedStatementError("this server answers from its tables alone: Sail is not installed")
        try:
            places = At.of(at_least, "fresh_at_least")
        except FluvialError as error:
            raise BadRequestError(str(error)) from error
        statement = view.lookup(key, columns)
        found: list[Row] = []

        def take(answer: Answer) -> None:
            found.extend(dict(zip(dict(answer.columns), row, strict=True)) for row in answer.rows())

        told = await self._statements.read(Asked(statement=statement, fresh=True, at_least=places), gone, take)
        (version,) = told.versions
        demand_fresh(version)
        return (found[0] if found else None), version
