"""
Rows by key that stand in no version of their table: with what the log holds behind it, or as of offsets between two
versions. A statement each, for events have to be folded into the table.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fluvial.errors import FluvialError
from fluvial.query.engine import Answer
from fluvial.query.versions import At, Version
from fluvial.serve.errors import BadRequestError, NoVersionError, RefusedStatementError, StatementFailedError
from fluvial.serve.service import Asked, Meant
from fluvial.serve.sql import Asked as AskedStatement
from fluvial.serve.sql import Statements
from fluvial.serve.table import Row, demand_fresh


class MadeRows:
    """
    Looks rows up by statements; None gives none.
    """

    def __init__(self, statements: Statements | None) -> None:
        self._statements = statements

    async def rows(
        self,
        meant: Meant,
        keys: Sequence[Sequence[Any]],
        asked: Asked,
        gone: Callable[[], Coroutine[Any, Any, None]],
    ) -> tuple[list[Row | None], Version]:
        """
        The rows with these keys in their order, None where there is none, and the version that all of them are of with
        the offsets in it.

        Raises :class:`~fluvial.serve.errors.ServeError`.
        """
        if self._statements is None:
            raise meant.between or RefusedStatementError(
                "this server answers from its tables alone: Sail is not installed"
            )
        view, found = meant.view, list[Row | None]()
        statement = AskedStatement(
            statement=view.lookup_all(keys, asked.columns),
            places=_places(asked.at, "at"),
            fresh=asked.fresh,
            at_least=_places(asked.fresh_at_least, "fresh_at_least"),
            is_own=True,
        )

        def take(answer: Answer) -> None:
            _, batches = answer.arrow()
            found.extend(view.in_order(keys, batches, asked.columns))

        try:
            told = await self._statements.read(statement, gone, take)
        except StatementFailedError as error:
            if meant.between is None:
                raise
            raise NoVersionError(str(error)) from error
        (version,) = told.versions
        demand_fresh(version)
        return found, version


def _places(words: Sequence[str], name: str) -> Sequence[At]:
    try:
        return At.of(words, name)
    except FluvialError as error:
        raise BadRequestError(str(error)) from error
