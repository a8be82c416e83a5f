"""Fixtures of a project in miniature."""

from pathlib import Path

import dagster as dg
import pytest
from miniature import DECLARATIONS, NoSpark, Runner

from fluvial.config import Settings
from fluvial.orchestration import assets_for


@pytest.fixture
def runner() -> Runner:
    return Runner()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data", warehouse=str(tmp_path / "data" / "warehouse"))


@pytest.fixture
def definitions(runner: Runner) -> dg.Definitions:
    assets = assets_for(DECLARATIONS, run=runner, retry_policy=dg.RetryPolicy(max_retries=1, delay=0))
    return dg.Definitions(assets=assets, resources={"spark": NoSpark()}, executor=dg.in_process_executor)
