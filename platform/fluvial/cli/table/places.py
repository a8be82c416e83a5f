"""Where the tables of a warehouse on this machine lie."""

from difflib import get_close_matches

from fluvial.config import Settings
from fluvial.errors import FluvialError


class UnknownTableError(FluvialError):
    """The warehouse has no table of this name."""


def names_of(settings: Settings) -> list[str]:
    """Return the tables of the warehouse; raises FluvialError for one that is not on this machine."""
    from fluvial.spark.warehouse import Warehouse

    warehouse = Warehouse.at(settings.warehouse)
    if warehouse.local is None:
        raise FluvialError(
            f"the tables in {warehouse.root} are not on this machine and only Spark reads them: "
            '`fluvial sql "describe history TABLE"`'
        )
    return warehouse.tables()


def path_of(settings: Settings, table: str) -> str:
    """Return the folder of a table; raises UnknownTableError where there is none."""
    names = names_of(settings)
    if table not in names:
        near = [name for name in names if name.partition(".")[2] == table] or get_close_matches(table, names, n=3)
        repair = f"did you mean {' or '.join(near)}?" if near else "`fluvial table list` shows the existing tables"
        raise UnknownTableError(f"no table {table!r} in {settings.warehouse}; {repair}")
    return folder_of(settings, table)


def folder_of(settings: Settings, table: str) -> str:
    """Return the folder that a table of this name has, whether it is there or not."""
    from fluvial.spark.warehouse import Warehouse

    return f"{Warehouse.at(settings.warehouse).local}/{table.replace('.', '/')}"
