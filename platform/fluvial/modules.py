"""Where the user's own modules are looked for."""

import sys
from pathlib import Path


def look_in_current_folder() -> None:
    """Put the current folder on the path that modules are imported from, as `python -m` does."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
