"""A command line loads the branch of the tree that it is about, which is as in the whole tree."""

import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from fluvial.cli.old_names import NEW_NAMES
from fluvial.cli.tree import BRANCHES, COMPLETING, LEAVES, branch_of, whole

# What the commands' own modules stand on; nothing of it says which commands there are.
HEAVY = (
    "asyncio", "confluent_kafka", "dagster", "duckdb", "fastavro", "fluvial.cli.cluster", "fluvial.cli.run",
    "fluvial.cli.table", "fluvial.cli.topic", "fluvial.cli.topic.consume", "fluvial.config", "http.client", "httpx",
    "importlib.metadata", "numpy", "pandas", "pyarrow", "pydantic", "pyspark", "rich", "ssl",
)  # fmt: skip


def loaded_by(words: list[str]) -> list[str]:
    """What of HEAVY a process has loaded that ran one command line."""
    program = (
        f"import sys\nfrom fluvial.cli.main import execute\nexecute({words!r})\n"
        f"print(*(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "fluvial" in done.stdout
    return done.stderr.split()


def commands(app: typer.Typer) -> dict[str, Any]:
    found: Any = typer.main.get_command(app)
    return dict(found.commands)


def test_every_command_has_its_branch_in_the_order_of_the_help() -> None:
    assert list(commands(whole())) == list(BRANCHES)


@pytest.mark.parametrize("name", [*BRANCHES, *NEW_NAMES])
def test_a_branch_has_the_command_that_is_named(name: str) -> None:
    new = NEW_NAMES.get(name, (name,))[0]
    for words in ([name], ["--debug", name, "--help"], ["--profile", "topic", name], ["--profile=topic", name]):
        assert new in commands(branch_of(words)), words
        assert len(commands(branch_of(words))) < len(BRANCHES), words


@pytest.mark.parametrize("words", [[], ["--help"], ["nothing"], ["--profile"], ["--unknown", "sql"], ["--help", "sql"]])
def test_what_names_no_command_has_them_all(words: list[str]) -> None:
    assert list(commands(branch_of(words))) == list(BRANCHES)


@pytest.mark.parametrize("words", [["--help"], ["--debug", "--profile", "prod", "--help"]])
def test_help_of_all_commands_loads_none_of_them(words: list[str]) -> None:
    assert loaded_by(words) == []


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_leaf_has_its_command_as_the_whole_tree_has_it(leaf: tuple[str, str]) -> None:
    group, name = leaf
    alone, in_all = (commands(app)[group] for app in (branch_of([group, name, "--help"]), whole()))
    assert len(alone.commands) < len(in_all.commands)
    assert alone.help == in_all.help
    assert [each.opts for each in alone.commands[name].params] == [each.opts for each in in_all.commands[name].params]


def test_help_of_a_topics_listing_loads_no_client_and_no_other_command() -> None:
    loaded = loaded_by(["topic", "list", "--help"])
    assert set(loaded) <= {"fluvial.cli.topic", "fluvial.config", "importlib.metadata", "pydantic"}


def test_the_help_of_all_commands_is_that_of_the_whole_tree() -> None:
    def help_of(app: typer.Typer) -> str:
        return CliRunner().invoke(app, ["--help"], prog_name="fluvial").stdout

    assert "Start here" in help_of(whole())
    assert help_of(branch_of(["--help"])) == help_of(whole())


def test_each_summary_begins_the_help_of_what_it_stands_for() -> None:
    found = commands(whole())
    for name, branch in BRANCHES.items():
        assert " ".join(found[name].help.split("\n\n")[0].split()) == branch.summary, name


def test_the_shell_completes_in_the_whole_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMPLETING, "complete_bash")
    assert branch_of([]) is whole()


def test_words_behind_an_option_that_is_none_reach_no_stand_in() -> None:
    assert branch_of(["--", "version"]) is whole()


def test_asking_a_server_loads_no_engine() -> None:
    program = (
        "import sys\nfrom fluvial.cli.main import execute\nexecute(['sql', '--help'])\n"
        "print([name for name in sys.modules if name.startswith(('pyarrow', 'numpy', 'fluvial.query.engine',"
        " 'fluvial.cli.topic', 'fluvial.cli.cluster', 'pyspark', 'confluent_kafka'))], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
