"""
A note that a process leaves beside the local platform's state while it runs, by which commands find it.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


def read_note(path: Path) -> Any:
    """
    What is noted. Raises OSError where nothing is, and ValueError for what is no note.
    """
    return json.loads(path.read_text(encoding="utf-8"))


def leave_note(path: Path, note: Mapping[str, Any]) -> None:
    """
    Note something of this process, whole, in the place of what another one has noted. Raises OSError.
    """
    written = path.with_name(f"{path.name}.{os.getpid()}")
    written.write_text(json.dumps({"pid": os.getpid(), **note}), encoding="utf-8")
    written.replace(path)


def take_note_back(path: Path) -> None:
    """
    Remove the note, if it is this process's.
    """
    with suppress(OSError, ValueError, KeyError):
        if read_note(path)["pid"] == os.getpid():
            path.unlink()
