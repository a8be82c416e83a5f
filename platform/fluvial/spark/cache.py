"""
Where a user's machine keeps what is made once and used again.
"""

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """
    The folder of that name under `$XDG_CACHE_HOME/fluvial`, or `~/.cache/fluvial`; it may not be there yet.
    """
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "fluvial" / name
