"""
The data set of the journey, as Parquet and as pandas has the answers.

Two years of hourly temperatures of two cities and four years of Seattle's weather, from the PyPI package vega_datasets.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from vega_datasets import local_data

CORRECTED_DAYS = 40
BANDS = (("cold", 45.0), ("cool", 55.0), ("mild", 65.0))


@dataclass(frozen=True, kw_only=True)
class Weather:
    """`readings` by the hour, `days`, and `corrections` of some of the days that come later."""

    readings: pd.DataFrame
    days: pd.DataFrame
    corrections: pd.DataFrame

    @classmethod
    def load(cls) -> "Weather":
        hours = [local_data.seattle_temps().assign(station="SEA"), local_data.sf_temps().assign(station="SFO")]
        readings = pd.concat(hours).sort_values(["date", "station"], ignore_index=True)
        readings["band"] = readings["temp"].map(_band)
        days = local_data.seattle_weather().rename(columns={"date": "at"})
        days.insert(0, "day", days["at"].dt.strftime("%Y-%m-%d"))
        corrections = days.iloc[:: len(days) // CORRECTED_DAYS].copy()
        corrections["precipitation"] += 0.1
        return cls(
            readings=_instants(readings.rename(columns={"date": "at"})[["station", "at", "temp", "band"]]),
            days=_instants(days),
            corrections=_instants(corrections),
        )

    def write(self, folder: Path) -> None:
        """Write each as Parquet."""
        for name in ("readings", "days", "corrections"):
            getattr(self, name).to_parquet(folder / f"{name}.parquet", index=False)

    @property
    def newest_days(self) -> pd.DataFrame:
        """Each day as it was corrected last."""
        return pd.concat([self.days, self.corrections]).drop_duplicates("day", keep="last").sort_values("day")

    @property
    def unusual(self) -> int:
        """The number of readings that the suite lets not pass."""
        return int((~self.readings["temp"].between(39, 75)).sum())

    def stations(self) -> list[dict[str, Any]]:
        """What `state.stations` has to hold."""
        found = []
        for station, rows in self.readings.groupby("station"):
            found.append(
                {
                    "station": station,
                    "hours": len(rows),
                    "coldest": rows["temp"].min(),
                    "warmest": rows["temp"].max(),
                    "cold_hours": int((rows["temp"] < 45).sum()),
                    "last": rows["temp"].iloc[-1],
                }
            )
        return found

    def bands(self) -> list[dict[str, Any]]:
        """What `state.bands` has to hold: from when until when a station was in which band."""
        found = []
        for station, rows in self.readings.groupby("station"):
            changed = rows[rows["band"] != rows["band"].shift()]
            ends = [*changed["at"].iloc[1:], None]
            for at, band, end in zip(changed["at"], changed["band"], ends, strict=True):
                found.append({"station": station, "band": band, "valid_from": at, "valid_to": end})
        return found

    def kinds(self) -> list[dict[str, Any]]:
        """What `marts.kinds` has to hold."""
        rows = self.newest_days.groupby("weather")
        found = rows.agg(days=("day", "count"), rain=("precipitation", "sum"), warmest=("temp_max", "max"))
        return found.reset_index().to_dict("records")


def _band(temp: float) -> str:
    return next((name for name, below in BANDS if temp < below), "warm")


def _instants(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(at=frame["at"].dt.tz_localize("UTC").astype("datetime64[ms, UTC]"))
