"""
The local platform's folders hold records, password hashes and logs: only its user may look into them.
"""

import os
from contextlib import suppress
from pathlib import Path

FILE_MODE = 0o600
FOLDER_MODE = 0o700


def make_private(folder: Path, *, mark: str) -> None:
    """
    Make a folder for its user alone, or close one that an earlier version has left open to others. Raises OSError.

    Such a one has the file `mark` in it. Any other folder stays as it is, and so does one of somebody else.
    """
    folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_mode & 0o077 and found.st_uid == os.geteuid() and (folder / mark).exists():
        with suppress(PermissionError):
            folder.chmod(found.st_mode & FOLDER_MODE)
