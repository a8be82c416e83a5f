"""A command line loads the branch of the tree that it is about, which is as in the whole tree."""

import subprocess
import sys

import pytest
import typer

from fluvial.cli.old_names import NEW_NAMES
from fluvial.cli.tree import BRANCHES, branch_of, whole


def commands(app: typer.Typer) -> list[str]:
    return list(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def test_every_command_has_its_branch_in_the_order_of_the_help() -> None:
    assert commands(whole()) == list(BRANCHES)


@pytest.mark.parametrize("name", [*BRANCHES, *NEW_NAMES])
def test_a_branch_has_the_command_that_is_named(name: str) -> None:
    new = NEW_NAMES.get(name, (name,))[0]
    for words in ([name], ["--debug", name, "--help"], ["--profile", "topic", name], ["--profile=topic", name]):
        assert new in commands(branch_of(words)), words
        assert len(commands(branch_of(words))) < len(BRANCHES), words


@pytest.mark.parametrize("words", [[], ["--help"], ["nothing"], ["--profile"], ["--unknown", "sql"], ["--help", "sql"]])
def test_what_names_no_command_has_them_all(words: list[str]) -> None:
    assert commands(branch_of(words)) == list(BRANCHES)


def test_asking_a_server_loads_no_engine() -> None:
    program = (
        "import sys\nfrom fluvial.cli.main import execute\nexecute(['sql', '--help'])\n"
        "print([name for name in sys.modules if name.startswith(('pyarrow', 'numpy', 'fluvial.query.engine',"
        " 'fluvial.cli.topic', 'fluvial.cli.cluster', 'pyspark', 'confluent_kafka'))], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
