"""Streams that settle into Delta."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from fluvial.database import Database


def connect(
    warehouse: str | Path | None = None,
    *,
    data_dir: str | Path | None = None,
    keys: Mapping[str, Sequence[str]] | None = None,
) -> "Database":
    """
    Open the tables of a warehouse, by default those of the project in this folder, for queries and rows by key.

    `keys` names key columns of marts. Raises :class:`fluvial.errors.FluvialError` for settings that are wrong.
    """
    from fluvial.database import Database

    return Database.at(warehouse, data_dir=data_dir, keys=keys)


def load_ipython_extension(shell: "InteractiveShell") -> None:
    """
    `%load_ext fluvial`: have `%sql` and `%%sql` in a notebook, see :mod:`fluvial.notebook`.
    """
    from fluvial.notebook import load

    load(shell)
