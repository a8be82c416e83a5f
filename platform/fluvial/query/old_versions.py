"""
An old version of a table as a folder of links, for an engine that reads only what is newer than the last checkpoint.

Sail 0.7.2 takes `_last_checkpoint` for the checkpoint of whatever version it is asked for, and refuses those below it.
Without that file it looks for a checkpoint itself.
"""

import json
import os
from pathlib import Path

_LOG, _HINT = "_delta_log", "_last_checkpoint"


def is_old(table: Path, version: int) -> bool:
    """
    Whether a version is below the table's last checkpoint.
    """
    try:
        hint = json.loads((table / _LOG / _HINT).read_text(encoding="utf-8"))
        return version < int(hint["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def linked(table: Path, version: int, folder: Path) -> Path:
    """
    A folder below `folder` that holds links to all that makes up the table up to a version; made once.

    What is added to the table later is not in it, as a version takes no other files. Raises OSError.
    """
    place = folder / f"{version}-{abs(hash(str(table))):x}"
    if place.is_dir():
        return place
    log = place / _LOG
    log.mkdir(parents=True)
    for entry in os.scandir(table):
        if entry.name != _LOG:
            (place / entry.name).symlink_to(entry.path)
    for entry in os.scandir(table / _LOG):
        if entry.name[:20].isdigit() and int(entry.name[:20]) <= version:
            (log / entry.name).symlink_to(entry.path)
    return place
