"""Whatever words a command is given, it ends with a status and lines for a reader, never with a traceback."""

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest
import typer

from fluvial.cli import terminal
from fluvial.cli.main import execute
from fluvial.cli.tree import DEBUG, whole

WORDS = (
    "",
    "-1",
    "0",
    "99999999999999999999",
    "nan",
    "\x00",
    "ü",
    "../..",
    "a=b=c",
    "=",
    "[",
    "{}",
    "%s",
    "--",
    "-",
    ":",
    "t",
)
ROUNDS = 5
# They run until they are stopped, open a browser or start Spark before they look at their words.
LEFT_OUT = {
    ("up",),
    ("ui",),
    (
        "schema",
        "serve",
    ),
    ("demo",),
    ("sql",),
    ("serve",),
}


def commands() -> list[tuple[str, ...]]:
    """Every command of the tree, as words."""

    def below(command: Any, words: tuple[str, ...]) -> list[tuple[str, ...]]:
        inner = getattr(command, "commands", None)
        if not inner:
            return [words]
        return [found for name, each in sorted(inner.items()) for found in below(each, (*words, name))]

    return [words for words in below(typer.main.get_command(whole()), ()) if words not in LEFT_OUT]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new project."""
    folder = tmp_path_factory.mktemp("projects") / "shop_of_words"
    assert execute(["init", str(folder)]) == 0
    return folder


@pytest.fixture
def project(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The project as the current folder, whose broker and registry nobody answers for."""
    for name in list(os.environ):
        if name.startswith("FLUVIAL_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(shop)
    monkeypatch.setenv("FLUVIAL_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("FLUVIAL_REGISTRY_URL", "http://127.0.0.1:1")


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_no_words_bring_a_command_to_a_traceback(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: Any = typer.main.get_command(whole())
    for word in command:
        found = found.commands[word]
    options = [each for parameter in found.params for each in parameter.opts if each.startswith("-")]
    rng = Random(" ".join(command))
    monkeypatch.setenv(DEBUG, "1")  # what nobody knows is raised, and fails the test
    for _ in range(ROUNDS):
        words = [rng.choice(rng.choice((options or WORDS, WORDS))) for _ in range(rng.randint(0, 4))]
        assert execute([*command, *words]) in {0, 1, 2}, words
        said = capsys.readouterr()
        assert "Traceback" not in said.out + said.err, words


def test_what_nobody_knows_is_one_line_and_with_debug_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_line: str) -> None:
        raise ZeroDivisionError("a bug\nof two lines")

    monkeypatch.delenv(DEBUG, raising=False)
    monkeypatch.setattr(terminal, "answer", broken)
    assert execute(["version"]) == 1
    assert capsys.readouterr().err == (
        "error: unexpected ZeroDivisionError: a bug; `fluvial --debug …` shows where, which belongs into a report of "
        "this bug\n"
    )
    with pytest.raises(ZeroDivisionError):
        execute(["--debug", "version"])
    monkeypatch.delenv(DEBUG)
