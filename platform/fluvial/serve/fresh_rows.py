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

    async def rows(
        self,
        view: View,
        keys: Sequence[Sequence[Any]],
        columns: Sequence[str] | None,
        at_least: Sequence[str],
        gone: Callable[[], Coroutine[Any, Any, None]],
    ) -> tuple[list[Row | None], Version]:
        """
        The rows with these keys in their order, None where there is none, and the version that all of them are of with
        the offsets in it.

        Raises :class:`~fluvial.serve.errors.ServeError`.
        """
        if self._statements is None:
            raise RefusedStatementError("this server answers from its tables alone: Sail is not installed")
        try:
            places = At.of(at_least, "fresh_at_least")
        except FluvialError as error:
            raise BadRequestError(str(error)) from error
        statement = view.lookup_all(keys, columns)
        found: list[Row | None] = []

        def take(answer: Answer) -> None:
            _, batches = answer.arrow()
            found.extend(view.in_order(keys, batches, columns))

        asked = Asked(statement=statement, fresh=True, at_least=places, is_own=True)
        told = await self._statements.read(asked, gone, take)
        (version,) = told.versions
        demand_fresh(version)
        return found, version
