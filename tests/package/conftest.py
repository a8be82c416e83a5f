"""The wheel and the sdist, built once from this tree for all processes of tests."""

from pathlib import Path

import pytest
from made_once import made_once
from package_build import ROOT, build


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (wheel,) = made_once(tmp_path_factory, "wheel", lambda folder: build(ROOT, "wheel", folder)).glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (sdist,) = made_once(tmp_path_factory, "sdist", lambda folder: build(ROOT, "sdist", folder)).glob("*.tar.gz")
    return sdist
