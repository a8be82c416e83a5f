"""Platforms for the end-to-end tests: an empty one for each that breaks something, one filled for those that read."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from installed import Installed
from local_platform import LocalPlatform
from made_once import made_once


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(item.path).is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[LocalPlatform]:
    """A platform that is not started yet; whatever runs at the end is stopped."""
    local = LocalPlatform(tmp_path / "data")
    yield local
    local.down()


@pytest.fixture(scope="session")
def demo(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPlatform]:
    """The main job, run once, from the wheel in a folder that held nothing, for all who read it."""
    folder = tmp_path_factory.mktemp("demo")
    local = LocalPlatform(folder / ".fluvial", installed.bin / "fluvial", folder, installed.environment)
    local.run(*local.main_job_words())
    yield local
    local.down()


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel of this tree, installed outside of it; FLUVIAL_INSTALL=all installs all that it needs, too."""
    whole = os.environ.get("FLUVIAL_INSTALL") == "all"
    return Installed(made_once(tmp_path_factory, "installed", lambda folder: Installed(folder).make(whole=whole)))
