"""Why a table is not in a catalog."""

from fluvial.errors import FluvialError


class CatalogError(FluvialError):
    """
    A catalog did not take a table.

    `is_away`: it takes no other table either, for it does not answer, or knows nobody by this token.
    """

    def __init__(self, message: str, *, is_away: bool = False) -> None:
        super().__init__(message)
        self.is_away = is_away
