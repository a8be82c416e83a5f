"""Where the commands about schemas find theirs: a folder of contracts, or one file with its subject."""

from pathlib import Path
from typing import Annotated

import typer

CONTRACTS = Path("schemas")

Source = Annotated[
    Path,
    typer.Argument(metavar="PATH", help="Folder of contracts (schemas/<producer>/), or an .avsc file with --subject."),
]
Subject = Annotated[
    str | None, typer.Option("--subject", help="Subject of the schema, when PATH is a file.", show_default=False)
]


def subject_of_file(path: Path, subject: str | None) -> str | None:
    """Return the subject when PATH is one schema; raises a usage error when path and subject do not fit."""
    if path.is_dir():
        if subject is not None:
            raise typer.BadParameter(
                f"--subject {subject}: {path} is a folder, whose owner.toml files name the subjects"
            )
        return None
    if not path.exists():
        raise typer.BadParameter(f"{path}: no such file or folder")
    if subject is None:
        raise typer.BadParameter(f"{path} is a file: name its subject with --subject")
    return subject
