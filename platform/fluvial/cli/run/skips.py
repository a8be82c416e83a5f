"""`fluvial run --skip`: tables brought up to date without records that are named."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from fluvial.tables.plan.skips import SkipsWanted, merged

if TYPE_CHECKING:
    from fluvial.tables import Declaration

_SKIP = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+):(?P<partition>\d+)=(?P<offsets>\d+(?:,\d+)*)")


def parse_skips(texts: Sequence[str]) -> dict[str, SkipsWanted]:
    """Return the offsets of each topic, of texts such as `orders:3=1234,1240`; raises BadParameter."""
    skips: dict[str, SkipsWanted] = {}
    for text in texts:
        found = _SKIP.fullmatch(text)
        if found is None:
            raise typer.BadParameter(f"--skip {text}: write topic, partition and offsets as in orders:3=1234,1240")
        offsets = {int(found["partition"]): [int(each) for each in found["offsets"].split(",")]}
        skips[found["topic"]] = merged(skips.get(found["topic"], {}), offsets)
    return skips


def check_skips(skips: dict[str, SkipsWanted], tables: "Sequence[Declaration]") -> None:
    """Raise BadParameter for a topic that none of the tables is made from."""
    topics = {getattr(each, "topic", None) for each in tables if each.kind in {"history", "compacted", "state"}}
    for topic in skips:
        if topic not in topics:
            raise typer.BadParameter(f"--skip {topic}: none of the named tables is made from it")
