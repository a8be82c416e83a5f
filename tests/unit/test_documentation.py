"""
The pages: their site builds without a broken link, and each of their blocks of code is tried.

A block is *run* by a test that takes it from the page, or *checked*: TOML, YAML, JSON are parsed; Python is compiled,
what it imports from here exists, and declarations of tables are made; of a shell's commands those of `fluvial`, `make`
and `python` are parsed by what they would start. What can be neither says so: `<!-- not run: why -->` before it.
"""

import ast
import importlib
import importlib.util
import json
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from markdown_it import MarkdownIt

from fluvial.cli import reference
from fluvial.cli.profile import give_to_all
from fluvial.cli.tree import whole
from fluvial.profiles import VARIABLE

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "platform" / "fluvial" / "scaffold" / "project-template"
NOT_RUN = re.compile(r"<!-- not run: \S.* -->\s*$")
PICTURES = {"mermaid"}
WAYS = {"run": "run by a test", "checked": "checked", "marked": "marked as not run"}
# Which tests run blocks of which pages as they stand there.
RUN = {
    ("README.md", "python"): "tests/unit/fluvial/test_extras.py",
    ("docs/coming-from.md", "python"): "tests/unit/log_broker/test_page_coming_from.py",
    ("docs/kafka-for-pytest.md", "python"): "tests/unit/fluvial/test_extras.py",
    ("docs/reading-tables.md", "python"): "tests/spark/test_spark_readers.py",
    ("docs/windows-and-joins.md", "python"): "tests/spark/test_spark_windows_page.py",
    ("docs/tutorial.md", "sh"): "tests/e2e/test_tutorial.py",
}
# Programs of others, whose words are theirs.
OTHERS = {
    *(
        "cat",
        "cd",
        "chmod",
        "cp",
        "createdb",
        "curl",
        "dg",
        "docker",
        "echo",
        "export",
        "git",
        "jq",
        "kcat",
        "kubectl",
        "mkdir",
    ),
    *("pip", "pipx", "psql", "pytest", "rm", "sudo", "systemctl", "uvx", ".venv/bin/pip", ".venv/bin/pytest"),
}
# `cat > file.py <<'END'`, and the file's text.
HERE_DOCUMENT = re.compile(r"(?:>+ *\S+\.(\w+) )?<< *'?END'?\n(.*?)^END$", re.MULTILINE | re.DOTALL)
SUFFIXES = {"py": "python", "toml": "toml", "avsc": "json"}
SPLIT = {"|", "||", "&&", ";", "&"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of code of a page; `language` is empty where the page does not tell."""

    page: str
    line: int
    language: str
    text: str
    marked: bool

    def __str__(self) -> str:
        return f"{self.page}:{self.line} ({self.language or 'no language'})"


@cache
def blocks() -> tuple[Block, ...]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    return tuple(block for page in sorted(listed) if (ROOT / page).is_file() for block in blocks_of(page))


def blocks_of(page: str) -> Iterator[Block]:
    before = ""
    for token in MarkdownIt("commonmark").parse((ROOT / page).read_text(encoding="utf-8")):
        if token.type in {"fence", "code_block"}:
            language = token.info.split()[0] if token.info else ""
            assert token.map is not None
            yield Block(
                page=page,
                line=token.map[0] + 1,
                language=language,
                text=token.content,
                marked=bool(NOT_RUN.search(before)),
            )
        if token.type == "html_block" or token.nesting == 0:
            before = token.content if token.type == "html_block" else ""


def check(block: Block) -> None:
    """Raise for a block that is wrong; LookupError for one that nothing here can judge."""
    match block.language:
        case "toml":
            tomllib.loads(block.text)
        case "yaml":
            list(yaml.safe_load_all(block.text))
        case "json":
            json.loads(block.text)
        case "python":
            check_python(block.text)
        case "sh" | "":
            check_shell(block.text)
        case other:
            raise LookupError(f"nothing here judges {other}")


def check_python(text: str) -> None:
    tree = ast.parse(text)
    compile(tree, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in {"fluvial", "log_broker"}:
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")
    if "\nfrom fluvial.tables import" in f"\n{text}":
        # A fold's own source is read, so it lies in a file.
        with tempfile.TemporaryDirectory() as folder:
            module = Path(folder, "page.py")
            module.write_text(text, encoding="utf-8")
            runpy.run_path(str(module))


def check_shell(text: str) -> None:
    known = 0
    for suffix, written in HERE_DOCUMENT.findall(text):
        if suffix:
            check(Block(page="", line=0, language=SUFFIXES[suffix], text=written, marked=False))
            known += 1
    for words in commands(text):
        program = words[0].removeprefix(".venv/bin/")
        if program == "fluvial":
            parse(words[1:])
        elif program == "make":
            targets = re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
            assert [each for each in words[1:] if "=" not in each and each not in targets] == []
        elif program == "python" and words[1:2] == ["-m"]:
            assert importlib.util.find_spec(words[2]) is not None, words[2]
        elif program == "python" and not words[1].startswith("-"):
            assert any((folder / words[1]).is_file() for folder in (ROOT, TEMPLATE)), words[1]
        elif program in OTHERS:
            continue
        else:
            raise LookupError(f"nothing here judges {words[0]}")
        known += 1
    if not known:
        raise LookupError("all of its programs are others'")


def commands(text: str) -> Iterator[list[str]]:
    """The simple commands of a script, without files that one reads or writes."""
    text = re.sub(r"[<>]+ *[\w./-]+", "", HERE_DOCUMENT.sub("", text))
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.commenters, lexer.whitespace_split = "#", True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word in SPLIT:
                while words and re.fullmatch(r"\w+=.*", words[0]):
                    words = words[1:]
                if words:
                    yield words
                words = []
            else:
                words.append(word)


def parse(words: list[str]) -> None:
    """Parse the words as the command line does, and do nothing with them."""
    command: Any = typer.main.get_command(whole())
    give_to_all(command)
    rest = list(words)
    while True:
        try:
            context = command.make_context("fluvial", rest)
        except typer.BadParameter as error:
            if "does not exist" in str(error):  # a file that a reader has
                return
            raise
        rest = [*getattr(context, "_protected_args", ()), *context.args]
        if not hasattr(command, "commands") or not rest:
            return
        command = command.commands[rest.pop(0)]


def tried_as(block: Block) -> str:
    """How a block is tried: `run`, `checked` or `marked`."""
    if block.marked:
        return "marked"
    return "run" if (block.page, block.language) in RUN else "checked"


def tally() -> str:
    """How many blocks of all pages are tried in which way."""
    counts = Counter(tried_as(block) for block in blocks() if block.language not in PICTURES)
    ways = ", ".join(f"{counts[way]} {what}" for way, what in WAYS.items())
    return f"{counts.total()} blocks of code: {ways}"


def test_each_block_is_run_or_checked_or_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")  # which the lines with `--profile` set
    problems = []
    for block in blocks():
        if block.language not in PICTURES and tried_as(block) == "checked":
            try:
                check(block)
            except (Exception, SystemExit) as error:
                problems.append(f"{block}: {type(error).__name__}: {error}")
    assert not problems, "\n".join(problems)
    assert re.fullmatch(r"\d+ blocks of code: \d+ run by a test, \d+ checked, \d+ marked as not run", tally())


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("sh", "fluvial topic create orders --partition 3"),
        ("sh", "fluvial verify"),
        ("sh", "FLUVIAL_PROFILE=prod fluvial runs | jq"),
        ("sh", "make demos"),
        ("sh", "python -m log_broker.nothing"),
        ("sh", "curl http://127.0.0.1:9100/metrics"),
        ("", "ok, 3 records"),
        ("toml", "a = b"),
        ("python", "from fluvial.tables import nothing"),
        ("ini", "[pytest]"),
    ],
)
def test_a_wrong_block_is_found(language: str, text: str) -> None:
    with pytest.raises((Exception, SystemExit)):
        check(Block(page="", line=1, language=language, text=text, marked=False))


def test_blocks_are_run_by_tests_that_read_the_page() -> None:
    for (page, _), test in RUN.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["commands.md", "errors.md"])
def test_the_reference_is_what_the_code_has(name: str) -> None:
    committed = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert committed == reference.pages()[name], "python -m fluvial.cli.reference docs"


def test_the_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {str(path.relative_to(tmp_path / "site")) for path in (tmp_path / "site").rglob("*.html")}
    assert {"index.html", "docs/commands.html", "docs/errors.html", "docs/decisions/index.html"} <= pages
    assert re.search(r"fluvial 0\.\d", (tmp_path / "site" / "docs" / "cli.html").read_text(encoding="utf-8"))


if __name__ == "__main__":
    print(tally())
