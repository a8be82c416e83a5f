"""
The pages of the reference that are made from the code: the commands with their options, and the errors.

    python -m fluvial.cli.reference docs

writes `commands.md` and `errors.md` into the folder.
"""

import ast
import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

import fluvial
from fluvial.cli.profile import FLAG
from fluvial.cli.tree import whole
from fluvial.errors import FluvialError

_MADE = "<!-- made by python -m fluvial.cli.reference -->"
_WIDE = 100_000  # characters: nothing is wrapped
# Modules that are not a part of the library: they run something, or are loaded by others.
_NO_MODULES = ("__main__", "pytest_plugin")


def main(arguments: Sequence[str]) -> int:
    """Write the pages into the named folder; return the exit status."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m fluvial.cli.reference FOLDER\n")
        return 2
    for name, text in pages().items():
        Path(arguments[0], name).write_text(text, encoding="utf-8")
    return 0


def pages() -> dict[str, str]:
    """Return the text of each page by the name of its file."""
    return {"commands.md": commands_page(), "errors.md": errors_page()}


def commands_page() -> str:
    """Return the page of all commands: usage, what it does, arguments and options."""
    lines = [
        *("# Commands and options", "", _MADE, ""),
        f"Every command takes `{FLAG} NAME` and `--help`. [The command line](cli.md) says what they are for.",
    ]
    root = typer.main.get_command(whole())
    for names, command, context in _leaves(root, _context(root, "fluvial", None), ("fluvial",)):
        lines += ["", f"## {' '.join(names)}", "", f"`{context.get_usage().removeprefix('Usage:').strip()}`", ""]
        lines += [_plain(command.help), ""]
        if command.epilog:
            lines += [f"Example: `{command.epilog.partition(':')[2].strip()}`", ""]
        records = [each.get_help_record(context) for each in command.params if FLAG not in each.opts]
        rows = [f"| `{names}` | {_cell(text)} |" for names, text in filter(None, records) if names != FLAG]
        lines += ["| option | what it does |", "| --- | --- |", *rows] if rows else []
    return "\n".join(lines).rstrip() + "\n"


def _context(command: Any, name: str, parent: Any) -> Any:
    sizes = {"terminal_width": _WIDE, "max_content_width": _WIDE}
    return command.context_class(command, info_name=name, parent=parent, **sizes)


def _leaves(command: Any, context: Any, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    for name, child in getattr(command, "commands", {}).items():
        if not child.hidden:
            below = _context(child, name, context)
            if hasattr(child, "commands"):
                yield from _leaves(child, below, (*names, name))
            else:
                yield (*names, name), child, below


def errors_page() -> str:
    """Return the page of all errors: what each means, and how its messages go, with what to do."""
    lines = [
        *("# Errors", "", _MADE, ""),
        "What can go wrong, and what the messages say to do about it. Each is a `fluvial.errors.FluvialError`;",
        "its module is in parentheses. `…` stands for a name or a number.",
    ]
    for error, said in sorted(_messages().items(), key=lambda item: (item[0].__name__, item[0].__module__)):
        lines += ["", f"## {error.__name__} ({error.__module__})", "", _plain(error.__doc__)]
        lines += ["", *(f"- `{text.replace('`', chr(39))}`" for text in said)] if said else []
    return "\n".join(lines) + "\n"


def _messages() -> dict[type[FluvialError], list[str]]:
    """Every error, with the texts that it is raised with in the package."""
    modules = [
        importlib.import_module(each.name)
        for each in pkgutil.walk_packages(fluvial.__path__, "fluvial.")
        if not each.name.endswith(_NO_MODULES)
    ]
    found: dict[type[FluvialError], list[str]] = {}
    waiting = list(FluvialError.__subclasses__())
    while waiting:
        error = waiting.pop()
        if error.__module__.startswith("fluvial."):
            found[error] = []
        waiting += error.__subclasses__()
    for module in modules:
        for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))):
            for name, text in _said_by(node):
                named = getattr(module, name, None)
                if named in found and re.search(r"\w", text):
                    found[named].append(text)
    return {error: sorted(set(said)) for error, said in found.items()}


def _said_by(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The name of a class and a text: of what is raised with one, and of a class that makes its own."""
    match node:
        case ast.Raise(exc=ast.Call(func=ast.Name(id=name), args=[first, *_])):
            yield name, _template(first)
        case ast.ClassDef(name=name):
            for call in ast.walk(node):
                match call:
                    case ast.Call(func=ast.Attribute(attr="__init__"), args=[first, *_]):
                        yield name, _template(first)


def _template(node: ast.expr) -> str:
    """The text of a literal, with … for what is put into it."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    text = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)
    return re.sub(r"…+", "…", " ".join(text.split()))


def _plain(text: str | None) -> str:
    return "\n\n".join(" ".join(part.split()) for part in (text or "").strip().split("\n\n"))


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
