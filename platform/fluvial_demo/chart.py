"""The demo's picture: departure delay over the hours of the day, one line for each band of visibility."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from pipelines.flights.transforms import BANDS

DEPARTURES_MIN = 20
"""A mean over fewer departures is noise and is not drawn."""

# From dark red for fog to light blue for clear air; they also differ in lightness.
COLOURS = ("#7f1d1d", "#c2410c", "#d9a406", "#5b8db8", "#0b4f8a")
INK = "#333333"
DPI = 160


class DelayRow(Protocol):
    """One row of marts.delay_by_hour_and_visibility."""

    hour: int
    visibility: str
    departures: int
    mean_dep_delay: float


def draw(rows: Iterable[DelayRow], path: Path) -> None:
    """Write the picture to `path` as PNG; its folder is made when missing."""
    # The figure is used without pyplot, which would look for a display.
    from matplotlib.figure import Figure

    means = {(row.visibility, row.hour): row.mean_dep_delay for row in rows if row.departures >= DEPARTURES_MIN}
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for (_, band), colour in zip(BANDS, COLOURS, strict=True):
        # An hour without a mean is a gap in the line.
        line = [means.get((band, hour), math.nan) for hour in range(24)]
        if not all(map(math.isnan, line)):
            axes.plot(range(24), line, color=colour, linewidth=2, marker="o", markersize=4, label=band)
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_title("Departure delay from New York, 2013", loc="left", fontsize=14, color=INK, pad=24)
    axes.text(
        0,
        1.03,
        f"by scheduled hour and visibility at the airport; hours with {DEPARTURES_MIN} departures or more",
        transform=axes.transAxes,
        fontsize=9.5,
        color="#666666",
    )
    axes.set_xlabel("scheduled hour of departure (New York time)", color=INK)
    axes.set_ylabel("mean departure delay (minutes)", color=INK)
    axes.set_xticks(range(5, 24, 2), [f"{hour}:00" for hour in range(5, 24, 2)])
    axes.set_xlim(4.5, 23.5)
    axes.grid(axis="y", color="#e5e5e5", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0, colors=INK)
    if axes.lines[:-1]:
        axes.legend(title="visibility", frameon=False, loc="upper left", alignment="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)
