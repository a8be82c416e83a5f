"""What changes the fingerprint of a function of a project, and what does not."""

import importlib
import itertools
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fluvial.tables.declare.source_code import source_digest

NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def modules_as_before() -> Iterator[None]:
    before = dict(sys.modules)
    yield
    for name in sys.modules.keys() - before.keys():
        del sys.modules[name]


@pytest.fixture
def digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that writes a project, imports it as a new process would, and digests its `tables.mart`."""

    def of(files: Mapping[str, str], name: str = "mart") -> str:
        folder = tmp_path / str(next(NUMBERS))
        for file, text in files.items():
            path = folder / "shop" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        for path in {each.parent for each in folder.rglob("*.py")}:
            (path / "__init__.py").touch()
        for loaded in [each for each in sys.modules if each.partition(".")[0] == "shop"]:
            del sys.modules[loaded]
        importlib.invalidate_caches()
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(folder))
            return source_digest(getattr(importlib.import_module("shop.tables"), name))

    return of


MART = """
    LIMIT = 10

    def mart(rows):
        return rows.limit(LIMIT)
"""

WORDS = {"words.py": "GREETING = 'hello'\n"}

# Files, and what of them is changed: another fingerprint is wanted.
CHANGES: Mapping[str, tuple[Mapping[str, str], str, str]] = {
    "its own text": ({"tables.py": MART}, "rows.limit", "rows.tail"),
    "a constant": ({"tables.py": MART}, "10", "11"),
    "a function of its module": (
        {"tables.py": "def half(x):\n    return x / 2\n\ndef mart(rows):\n    return half(rows)\n"}, "x / 2", "x // 2",
    ),
    "a function that one of another module uses": (
        {
            "tables.py": "from shop.words import loud\n\ndef mart(rows):\n    return loud(rows)\n",
            "words.py": "from .deep.marks import MARK\n\ndef loud(text):\n    return text + MARK\n",
            "deep/marks.py": "MARK = '!'\n",
        },
        "'!'", "'?'",
    ),
    "a module by its name": (
        {"tables.py": "import shop.words\n\ndef mart(rows):\n    return shop.words.GREETING\n", **WORDS},
        "hello", "good day",
    ),
    "a module by another name": (
        {"tables.py": "from shop import words as w\n\ndef mart(rows):\n    return w.GREETING\n", **WORDS},
        "hello", "good day",
    ),
    "all names of a module": (
        {"tables.py": "from shop.words import *\n\ndef mart(rows):\n    return GREETING\n", **WORDS},
        "hello", "good day",
    ),
    "what is imported when it runs": (
        {"tables.py": "def mart(rows):\n    from shop.words import GREETING\n    return GREETING\n", **WORDS},
        "hello", "good day",
    ),
    "a statement that changes a constant": (
        {"tables.py": "WORDS = {}\nWORDS['a'] = 1\n\ndef mart(rows):\n    return WORDS\n"}, "= 1", "= 2",
    ),
    "a branch that binds": (
        {"tables.py": "if max(1, 2):\n    A = 'a'\nelse:\n    A = 'b'\n\ndef mart(rows):\n    return A\n"},
        "'a'", "'c'",
    ),
    "its decorator": (
        {
            "tables.py": """
                from functools import wraps

                def twice(function):
                    @wraps(function)
                    def both(rows):
                        return function(function(rows))
                    return both

                @twice
                def mart(rows):
                    return rows
            """
        },
        "function(function(rows))", "function(rows)",
    ),
    "what encloses it": (
        {"tables.py": "def made(n):\n    def some(rows):\n        return rows[n]\n    return some\n\nmart = made(1)\n"},
        "made(1)", "made(2)",
    ),
    "what it was given beforehand": (
        {"tables.py": "import functools\n\ndef f(n, rows):\n    return rows[n]\n\nmart = functools.partial(f, 1)\n"},
        "f, 1", "f, 2",
    ),
    "what is looked up by name": (
        {"tables.py": "A = 1\n\ndef mart(rows):\n    return globals()['A']\n"}, "A = 1", "A = 2",
    ),
    "one of two statements that bind a name": (
        {"tables.py": "A = [1]\nA = [*A, 2]\n\ndef mart(rows):\n    return A\n"}, "A = [1]", "A = [0]",
    ),
}  # fmt: skip


def changed(files: Mapping[str, str], old: str, new: str) -> dict[str, str]:
    assert sum(old in text for text in files.values()) == 1
    return {name: text.replace(old, new) for name, text in files.items()}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_what_it_uses_is_seen(what: str, digest: Any) -> None:
    files, old, new = CHANGES[what]
    assert digest(files) == digest(files), "the same text, imported again"
    assert digest(files) != digest(changed(files, old, new))


@pytest.mark.parametrize(
    ("added", "to"),
    [
        ("# Why ten?\n", "tables.py"),
        ("other = [LIMIT, 2]\n", "tables.py"),
        ("def other(rows):\n    return rows\n", "tables.py"),
        ("import json\n", "tables.py"),
        ("if __name__ == '__main__':\n    print(LIMIT)\n", "tables.py"),
        ("OTHER = 1\n", "words.py"),
    ],
)
def test_what_it_does_not_use_changes_nothing(added: str, to: str, digest: Any) -> None:
    text = "from shop.words import STEP\n\nLIMIT = 10\n\n\ndef mart(rows):\n    return rows.limit(LIMIT * STEP)\n"
    files = {"tables.py": f'"""Tables."""\n\n{text}', "words.py": "STEP = 3\n"}  # fmt: skip
    assert digest(files) == digest({**files, to: files[to] + "\n\n" + added})
    spaced = files["tables.py"].replace("LIMIT * STEP", "(LIMIT  *\n        STEP)")
    assert digest(files) == digest({**files, "tables.py": spaced})


def test_what_is_installed_is_not_the_projects(digest: Any) -> None:
    files = {"tables.py": "from json import dumps\n\ndef mart(rows):\n    return dumps(rows)\n"}
    assert digest(files) == digest(files)
    inside = {
        "tables.py": "from shop.site_packages_of import x\n\ndef mart(rows):\n    return x\n",
        "site_packages_of.py": "from json import dumps as x\n",
    }
    assert digest(inside) == digest(inside)


def test_a_text_that_is_changed_under_a_running_process_is_not_that_of_its_function(
    tmp_path: Path, digest: Any
) -> None:
    files = {"tables.py": MART}
    first = digest(files)
    module = sys.modules["shop.tables"]
    Path(str(module.__file__)).write_text(textwrap.dedent(MART).replace("10", "11"))
    assert source_digest(module.mart) == first


def test_what_has_no_text_is_refused() -> None:
    class Callable:
        def __call__(self, rows: Any) -> Any:
            return rows

    with pytest.raises(TypeError):
        source_digest(Callable())
    with pytest.raises(OSError, match="source"):
        source_digest(eval("lambda rows: rows"))
