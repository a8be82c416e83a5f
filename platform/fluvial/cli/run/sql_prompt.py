"""The prompt of `fluvial sql`: statements typed one after another, with history and completion."""

import io
import pydoc
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluvial.cli import terminal
from fluvial.config import Settings
from fluvial.errors import FluvialError
from fluvial.extras import needed
from fluvial.query.answers import Format

if TYPE_CHECKING:
    from fluvial.query.engine import Door

HELP = """\
  SELECT …;            a statement ends with ; and may go over lines
  \\d                   the tables
  \\d state.customers   the columns of a table
  \\format csv          how answers are written: table, json, csv, markdown
  \\timing              whether the engine, the time and the versions are said below an answer
  \\q                   leave, as Ctrl-D does"""

_BEGUN = re.compile(r"[\w.]+")
_KEYWORDS = (
    "select",
    "from",
    "where",
    "group",
    "by",
    "order",
    "having",
    "limit",
    "join",
    "left",
    "right",
    "full",
    "inner",
    "outer",
    "cross",
    "on",
    "using",
    "as",
    "and",
    "or",
    "not",
    "in",
    "is",
    "null",
    "like",
    "between",
    "case",
    "when",
    "then",
    "else",
    "end",
    "distinct",
    "union",
    "all",
    "except",
    "intersect",
    "with",
    "over",
    "partition",
    "rows",
    "asc",
    "desc",
    "count",
    "sum",
    "avg",
    "min",
    "max",
    "coalesce",
    "cast",
    "version",
    "timestamp",
    "of",
)


def prompt(door: "Door", fmt: Format, parameters: Mapping[str, str], settings: Settings) -> None:
    """Answer statements until the user leaves."""
    with needed():
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory, History, InMemoryHistory

    door.warm_up()
    history: History
    try:
        file = Path(settings.data_dir) / "sql_history"
        history = FileHistory(str(file)) if file.parent.is_dir() else InMemoryHistory()
    except OSError:
        history = InMemoryHistory()
    session: Any = PromptSession(
        "fluvial> ",
        history=history,
        completer=_completer(door),
        complete_while_typing=False,
        multiline=True,
        key_bindings=_keys(),
        prompt_continuation="     ... ",
        enable_open_in_editor=True,
    )
    terminal.say(r"Statements end with ; and \? says what else there is.")
    told = Prompt(door, fmt, parameters)
    while True:
        try:
            text = session.prompt()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if not told.take(text):
            return


class Prompt:
    """What has been typed is answered here; `take` says whether there is more to come."""

    def __init__(self, door: "Door", fmt: Format, parameters: Mapping[str, str]) -> None:
        self._door = door
        self._format = fmt
        self._parameters = parameters
        self._timing = True

    def take(self, text: str) -> bool:
        """Answer what was typed."""
        words = text.split()
        if not words:
            return True
        if words[0].startswith("\\") or words[0].lower() in ("exit", "quit", "exit;", "quit;"):
            return self._command(words[0].lower().rstrip(";"), words[1:])
        from fluvial.delta.failures import explained

        try:
            self._answer(text)
        except FluvialError as error:
            terminal.complain(str(error))
        except KeyboardInterrupt:
            # Its process is ended with what it was at; the next statement starts another.
            self._door.close()
            terminal.say("cancelled")
        except Exception as error:
            explanation = explained(error, "the query")
            if explanation is None:
                raise
            terminal.complain(str(explanation))
        return True

    def _answer(self, text: str) -> None:
        from fluvial.cli.run.sql import answer_into
        from fluvial.query.words import bound, statements_of

        size = shutil.get_terminal_size((160, 50))
        for statement in statements_of(text):
            spool = io.BytesIO()
            told = answer_into(spool, self._door, bound(statement, self._parameters), self._format, size.columns)
            _show(spool.getvalue().decode(), size.lines)
            if self._timing:
                terminal.say(told)

    def _command(self, name: str, words: list[str]) -> bool:
        match name:
            case "\\q" | "exit" | "quit":
                return False
            case "\\d":
                self._describe(words[0].rstrip(";") if words else None)
            case "\\timing":
                self._timing = not self._timing
                terminal.say(f"timing is {'on' if self._timing else 'off'}")
            case "\\format" if words and words[0] in [each for each in Format if each.is_text]:
                self._format = Format(words[0])
            case "\\format":
                terminal.say(f"\\format is one of {', '.join(each for each in Format if each.is_text)}")
            case _:
                terminal.say(HELP)
        return True

    def _describe(self, table: str | None) -> None:
        try:
            known = self._door.tables()
            if table is None:
                terminal.table(["table"], [[name] for name in known])
            elif table not in known:
                terminal.complain(f"no table {table}; \\d lists them")
            else:
                terminal.table(["column", "type"], self._door.columns(table))
        except FluvialError as error:
            terminal.complain(str(error))


def _show(text: str, lines: int) -> None:
    if sys.stdout.isatty() and text.count("\n") >= lines:
        pydoc.pager(text)
    else:
        sys.stdout.write(text)
        sys.stdout.flush()


def _keys() -> Any:
    """Enter ends what is a whole statement or a command, and begins a line otherwise."""
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: Any) -> None:
        buffer = event.current_buffer
        text = buffer.text.strip()
        if not text or text.startswith("\\") or text.endswith(";") or text.lower() in ("exit", "quit"):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    return keys


def _completer(door: "Door") -> Any:
    from prompt_toolkit.completion import Completer, Completion

    class Names(Completer):
        """Keywords, tables, and the columns of the tables that the statement names."""

        def get_completions(self, document: Any, complete_event: Any) -> Iterable[Any]:
            del complete_event
            begun = document.get_word_before_cursor(pattern=_BEGUN)
            for name in candidates(door, document.text, begun):
                yield Completion(name, start_position=-len(begun))

    return Names()


def candidates(door: "Door", text: str, begun: str) -> list[str]:
    """The names that a word may become: of tables, of columns of those that the text names, and keywords."""
    tables = door.tables()
    columns = [name for table in tables if table in text for name, _ in door.columns(table)]
    found = [name for name in (*columns, *tables, *_KEYWORDS) if name.lower().startswith(begun.lower())]
    return list(dict.fromkeys(found))
