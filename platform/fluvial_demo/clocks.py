"""From what a local clock shows to the instant at which it shows it, for whole columns at once."""

from datetime import tzinfo

import numpy as np
import numpy.typing as npt
import pandas as pd

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS

# The clock shows a time on the day of departure or the next, and where summer time begins one day later still.
DAYS_AHEAD = range(3)
NEVER = np.iinfo(np.int64).max

Millis = npt.NDArray[np.int64]


def first_on_clock_after(instants: Millis, hhmm: npt.NDArray[np.int64], zone: str | tzinfo) -> Millis:
    """
    Return, for each instant, the first later instant at which a clock in `zone` shows `hhmm`.

    `instants` and the result are UTC milliseconds; 2400 is midnight. A time that the clock shows twice (summer time
    ends) is taken at the earlier showing that is still later than the instant; one that it skips (summer time begins)
    is taken on the next day. Strictly later: a clock that shows `hhmm` at the instant itself is waited for.
    """
    local = pd.DatetimeIndex(instants.astype("datetime64[ms]")).tz_localize("UTC").tz_convert(zone)
    clock = (hhmm // 100 % 24) * 60 * MINUTE_MS + (hhmm % 100) * MINUTE_MS
    shown_today = local.tz_localize(None).normalize().to_numpy().astype("datetime64[ms]").astype(np.int64) + clock
    best = np.full(len(instants), NEVER)
    for days in DAYS_AHEAD:
        shown = pd.DatetimeIndex((shown_today + days * DAY_MS).astype("datetime64[ms]"))
        for first_showing in (True, False):
            found = _instants_of(shown, zone, first_showing)
            best = np.where((found > instants) & (found < best), found, best)
    assert (best < NEVER).all(), "a clock shows every time of day within three days"
    return best


def _instants_of(shown: pd.DatetimeIndex, zone: str | tzinfo, first_showing: bool) -> Millis:
    summer_time = np.full(len(shown), first_showing)
    localized = shown.tz_localize(zone, ambiguous=summer_time, nonexistent="NaT")
    utc = localized.tz_convert("UTC").tz_localize(None).to_numpy().astype("datetime64[ms]").astype(np.int64)
    return np.where(localized.isna(), NEVER, utc)
