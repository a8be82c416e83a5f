"""Platforms for the tests of the command line."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fluvial_command import Cli, stop


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are as wide as they want, whatever runs the tests."""
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    """A folder without a platform; whatever was started in it is stopped at the end."""
    one = Cli(tmp_path)
    yield one
    stop(one)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """A running platform that the tests of a module share; each uses topics of its own."""
    one = Cli(tmp_path_factory.mktemp("platform"))
    one.up()
    yield one
    stop(one)
