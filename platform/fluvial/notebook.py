"""
`%sql` and `%%sql` in a notebook, after `%load_ext fluvial`: statements of Spark SQL about the tables of a warehouse.

    %%sql --fresh -o top
    select city, sum(spent) spent from state.customers where orders > :least group by city

`:least` is the notebook's variable `least`, and `top` will be the answer, a :class:`fluvial.database.Result`.
"""

import atexit
from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from fluvial.database import Database, Result
from fluvial.errors import FluvialError
from fluvial.query.words import used_parameters


def load(shell: InteractiveShell) -> None:
    """
    Have the magics in a shell of IPython.
    """
    shell.register_magics(SqlMagics)


@magics_class
class SqlMagics(Magics):
    """
    What `%load_ext fluvial` gives.
    """

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self._variables = shell.user_ns
        self._own: Database | None = None  # that of the notebook's folder, once it is asked

    @no_var_expand
    @line_cell_magic
    @magic_arguments()
    @argument("-o", "--output", metavar="NAME", help="keep the answer in this variable, and do not show it")
    @argument("--db", metavar="NAME", help="a variable that holds what fluvial.connect() gave, for another warehouse")
    @argument("--at", metavar="TOPIC:PARTITION=OFFSET", action="append", default=[], help="tables as of these offsets")
    @argument("--fresh", action="store_true", help="with what the log holds behind the tables")
    @argument(
        "--fresh-at-least",
        metavar="TOPIC:PARTITION=OFFSET",
        action="append",
        default=[],
        help="the same, once the log has these offsets",
    )
    def sql(self, line: str, cell: str | None = None) -> Result | None:
        """
        Ask a statement: `%sql STATEMENT`, or `%%sql [options]` with the statement below. `:name` is a variable.
        """
        if cell is None:
            line, cell = "", line
        given = parse_argstring(self.sql, line)
        if not cell.strip():
            raise UsageError("there is no statement: %sql STATEMENT, or %%sql with the statement in the lines below")
        try:
            database = self._database(given.db)
            found = database.sql(
                cell,
                {name: self._variable(name, f":{name} in the statement") for name in used_parameters(cell)},
                at=given.at,
                fresh=given.fresh,
                fresh_at_least=given.fresh_at_least,
            )
        except FluvialError as error:
            raise UsageError(str(error)) from None
        if given.output is None:
            return found
        self._variables[given.output] = found
        return None

    def _database(self, name: str | None) -> Database:
        if name is not None:
            found = self._variable(name, f"--db {name}")
            if not isinstance(found, Database):
                raise UsageError(f"--db {name}: that is {type(found).__name__}, not what fluvial.connect() gives")
            return found
        if self._own is None:
            self._own = Database.at()
            atexit.register(self._own.close)
        return self._own

    def _variable(self, name: str, where: str) -> Any:
        """
        Return a variable of the notebook. Names of parameters come in lower case, and may be written otherwise.
        """
        names = self._variables
        spelled = name if name in names else next((each for each in names if each.lower() == name), None)
        if spelled is None:
            raise UsageError(f"{where}: the notebook has no variable {name}")
        return names[spelled]
