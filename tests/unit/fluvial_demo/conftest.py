"""The tables of the data package and what is made of them, read once."""

import pandas as pd
import pytest

from fluvial_demo import events, source
from fluvial_demo.feeds import Feed, all_feeds


@pytest.fixture(scope="session")
def flights() -> pd.DataFrame:
    return source.read("flights")


@pytest.fixture(scope="session")
def airports() -> pd.DataFrame:
    return source.read("airports")


@pytest.fixture(scope="session")
def all_events(flights: pd.DataFrame, airports: pd.DataFrame) -> pd.DataFrame:
    return events.flight_events(flights, airports)


@pytest.fixture(scope="session")
def feeds() -> list[Feed]:
    return all_feeds()
