"""
Draws `data-flow.png`, the picture in the README: `python docs/images/data_flow.py`.

A picture and not a diagram in the text, because package indexes show only pictures.
"""

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

INK, LINE, FILL, STORE = "#263238", "#607d8b", "#eceff1", "#cfd8dc"
# Name: middle, size, text, fill.
BOXES = {
    "producers": ((1.1, 3.4), (1.9, 0.8), "producers\nany Kafka client", FILL),
    "contracts": ((1.1, 1.0), (1.9, 0.8), "contracts\nschemas/…/*.avsc", FILL),
    "log": ((4.3, 3.4), (1.9, 0.8), "log_broker\n1..N nodes", STORE),
    "registry": ((4.3, 1.0), (1.9, 0.8), "schema registry", FILL),
    "pipelines": ((7.6, 3.4), (2.1, 0.8), "declarations, transforms\npipelines/<domain>/", FILL),
    "dagster": ((7.6, 1.0), (2.1, 0.8), "Dagster\nassets and checks", FILL),
    "delta": ((11.0, 3.4), (2.0, 0.8), "Delta: history, state\ncompacted, quarantine", STORE),
    "sql": ((11.0, 1.0), (2.0, 0.8), "Spark SQL\nfluvial sql", FILL),
}
# From, to, what it carries, style, where the words stand beside the middle of the line.
ARROWS = (
    ("producers", "log", "Kafka\nprotocol", "-", (0, 0.28)),
    ("contracts", "registry", "register", "-", (0, 0.15)),
    ("registry", "log", "checks records,\nstate in _schemas", "-", (0.75, 0)),
    ("log", "pipelines", "Spark's\nKafka source", "-", (0, 0.28)),
    ("dagster", "pipelines", "runs", "--", (0.3, 0)),
    ("pipelines", "delta", "data, offsets:\none commit", "-", (0, 0.28)),
    ("delta", "sql", "", "-", (0, 0)),
)


def edge(name: str, towards: str) -> tuple[float, float]:
    """The middle of the side of a box that faces another one."""
    ((x, y), (width, height), _, _), (other_x, other_y) = BOXES[name], BOXES[towards][0]
    if x == other_x:
        return x, y + (height / 2 if other_y > y else -height / 2)
    return x + (width / 2 if other_x > x else -width / 2), y


def main() -> None:
    """Write the picture beside this file."""
    figure, axes = plt.subplots(figsize=(12.2, 4.4), dpi=100)
    axes.set(xlim=(0, 12.2), ylim=(0.3, 4.2))
    axes.axis("off")
    for (x, y), (width, height), text, fill in BOXES.values():
        corner = (x - width / 2, y - height / 2)
        axes.add_patch(plt.Rectangle(corner, width, height, facecolor=fill, edgecolor=LINE, linewidth=1.2))
        axes.text(x, y, text, ha="center", va="center", fontsize=8.6, color=INK)
    for start, end, text, style, (right, up) in ARROWS:
        (x, y), (to_x, to_y) = edge(start, end), edge(end, start)
        arrow = {"arrowstyle": "->", "linestyle": style, "color": LINE, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", (to_x, to_y), (x, y), arrowprops=arrow)
        middle = ((x + to_x) / 2 + right, (y + to_y) / 2 + up)
        axes.text(*middle, text, ha="center", va="center", fontsize=8.2, color=INK)
    figure.savefig(
        Path(__file__).with_name("data-flow.png"), bbox_inches="tight", facecolor="white", metadata={"Software": None}
    )


if __name__ == "__main__":
    main()
