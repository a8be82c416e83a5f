"""
Secrets by reference: where a password stands, and never the password itself.

    env:FLIGHT_OPS_REGISTRY_PASSWORD    a variable of the environment
    file:registry-password              a file, relative to the one that names it; its last newline does not count
"""

import os
from collections.abc import Mapping
from pathlib import Path

from fluvial.errors import FluvialError

KINDS = ("env", "file")
FILE_BYTES_MAX = 10_000


class CredentialsError(FluvialError):
    """A secret is not where its reference says."""


def check_reference(reference: str) -> str | None:
    """Why a text is no reference, None when it is one."""
    kind, colon, place = reference.partition(":")
    if colon and kind in KINDS and place.strip():
        return None
    return "is no reference to a secret; write env:NAME or file:PATH, never the secret itself"


def read_secret(reference: str, *, folder: Path, environ: Mapping[str, str] | None = None) -> str:
    """Return the secret that `reference` stands for; raises CredentialsError when there is none."""
    wrong = check_reference(reference)
    if wrong is not None:
        raise CredentialsError(f"the reference {wrong}")
    kind, _, place = reference.partition(":")
    if kind == "env":
        found = (os.environ if environ is None else environ).get(place)
        if not found:
            raise CredentialsError(f"{reference}: the variable {place} is not set; put the password there")
        return found
    path = folder / Path(place).expanduser()
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX).decode("utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise CredentialsError(f"{reference}: {path} cannot be read: {error}") from None
    if not text:
        raise CredentialsError(f"{reference}: {path} is empty; put the password there")
    return text
