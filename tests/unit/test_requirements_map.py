"""docs/requirements.md is complete, and everything it names exists."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "requirements.md"

ROW = re.compile(r"^\| *(?P<id>[A-Z]-\d+) *\|(?P<statement>[^|]*)\|(?P<shown_by>[^|]*)\|$")
CODE = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\[[^\]]+\]\(([^)#]+)(?:#[^)]*)?\)")
NOT_YET = "not yet"
PARTLY = re.compile(r"^partly \((?P<lacks>[^()]+)\): (?P<proof>.+)$")
WORDS_MAX = 15

EXPECTED = [
    *(f"S-{n:03}" for n in range(1, 303)),
    *(f"F-{n:02}" for n in range(1, 38)),
    *(f"G-{n:02}" for n in range(1, 29)),
    *(f"D-{n:02}" for n in range(1, 20)),
    *(f"P-{n:03}" for n in range(1, 113)),
]


def rows() -> list[tuple[str, str, str]]:
    """The (id, statement, shown by) of every table line that carries an id."""
    found = [ROW.match(line) for line in PAGE.read_text(encoding="utf-8").splitlines()]
    return [(row["id"], row["statement"].strip(), row["shown_by"].strip()) for row in found if row]


@cache
def names_in(path: Path) -> frozenset[str]:
    """Functions and classes of a Python file, methods as `Class::method` too."""
    names: set[str] = set()
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, definitions):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names.update(f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, definitions))
    return frozenset(names)


def test_every_id_stands_there_exactly_once() -> None:
    ids = [row_id for row_id, _, _ in rows()]
    twice = sorted({row_id for row_id in ids if ids.count(row_id) > 1})
    assert not twice, f"docs/requirements.md: more than one line for {twice}"
    missing, unknown = sorted(set(EXPECTED) - set(ids)), sorted(set(ids) - set(EXPECTED))
    assert not missing, f"docs/requirements.md: no line for {missing}"
    assert not unknown, f"docs/requirements.md: ids that nobody defined: {unknown}"


def test_every_statement_is_short_and_says_something() -> None:
    wrong = [row_id for row_id, statement, _ in rows() if not 1 <= len(statement.split()) <= WORDS_MAX]
    assert not wrong, f"docs/requirements.md: statements that are empty or over {WORDS_MAX} words: {wrong}"


def test_everything_named_as_proof_exists() -> None:
    problems: list[str] = []
    for row_id, _, shown_by in rows():
        if shown_by == NOT_YET:
            continue
        named = [(ROOT / token.split("::", 1)[0], *token.split("::", 1)[1:]) for token in CODE.findall(shown_by)]
        named += [(PAGE.parent / target,) for target in LINK.findall(shown_by)]
        if not named:
            problems.append(f"{row_id}: name a `path::test`, link a page, or write '{NOT_YET}' (found {shown_by!r})")
        if shown_by.startswith("partly") and not PARTLY.match(shown_by):
            problems.append(f"{row_id}: 'partly (what lacks): what shows the rest' (found {shown_by!r})")
        for path, *test in named:
            if not path.exists():
                problems.append(f"{row_id}: {path} does not exist")
            elif test and test[0] not in names_in(path):
                problems.append(f"{row_id}: {path.name} has no {test[0]}")
    assert not problems, "docs/requirements.md:\n" + "\n".join(problems)
