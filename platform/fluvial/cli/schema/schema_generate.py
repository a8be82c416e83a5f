"""`fluvial schema generate`: from a contract to what is written by hand otherwise, and from a Parquet file to it."""

import json
import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluvial.cli import terminal
from fluvial.cli.options import with_registry
from fluvial.cli.schema.schema_sources import CONTRACTS
from fluvial.config import Settings
from fluvial.errors import FluvialError

if TYPE_CHECKING:
    from fluvial.registry.contracts import Contract


class Kind(StrEnum):
    """What is generated."""

    AVRO = "avro"
    SPARK = "spark"
    DDL = "ddl"
    DATACLASSES = "dataclasses"
    EXPECTATIONS = "expectations"
    DICTIONARY = "dictionary"


class UnknownSubjectError(FluvialError):
    """No contract has this subject."""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Example:  fluvial schema generate ddl flight_events-value")(generate)


@with_registry
def generate(
    *,
    settings: Settings,
    kind: Annotated[
        Kind,
        typer.Argument(
            metavar="KIND",
            help="avro: the schema itself; spark: a StructType; ddl: a Delta table; dataclasses: Python; "
            "expectations: a suite of Great Expectations; dictionary: a page of Markdown.",
            show_default=False,
        ),
    ],
    subjects: Annotated[
        list[str] | None, typer.Argument(metavar="[SUBJECT…]", help="None means all.", show_default=False)
    ] = None,
    contracts: Annotated[Path, typer.Option("--contracts", help="Folder of contracts.")] = CONTRACTS,
    from_registry: Annotated[
        bool, typer.Option("--from-registry", help="Take what is registered, not what is in the files.")
    ] = False,
    from_parquet: Annotated[
        Path | None,
        typer.Option(
            "--from-parquet",
            metavar="FILE",
            help="Take the columns of this file as the contract of the one subject.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="COLUMN", help="Of a Parquet file, the column that is the record key.", show_default=False
        ),
    ] = None,
) -> None:
    """
    Write code, statements or a page that follow from contracts, on stdout.

    With --from-parquet FILE, `avro` is a contract to begin with: a column without nulls is required.
    """
    if from_parquet is not None:
        if from_registry or len(subjects or ()) != 1:
            raise typer.BadParameter("--from-parquet is the contract of one subject: name it, without --from-registry")
        found = [_of_parquet(from_parquet, (subjects or [""])[0], key)]
    elif key is not None:
        raise typer.BadParameter("--key names a column of --from-parquet")
    else:
        found = _registered(settings, subjects) if from_registry else _declared(contracts, subjects)
    terminal.answer(_text(kind, found))


def _text(kind: Kind, contracts: "list[Contract]") -> str:
    from fluvial.registry import generate

    match kind:
        case Kind.AVRO:
            parts = [json.dumps(each.schema, indent=2, ensure_ascii=False) for each in contracts]
        case Kind.SPARK:
            parts = [generate.struct_type_source(each.schema, each.topic.upper()) for each in contracts]
        case Kind.DDL:
            parts = [f"{generate.delta_ddl(each.schema, each.topic)};" for each in contracts]
        case Kind.DATACLASSES:
            parts = [generate.dataclasses_source(each.schema) for each in contracts]
        case Kind.EXPECTATIONS:
            suites: list[Any] = [generate.expectation_suite(each.schema, each.subject) for each in contracts]
            parts = [json.dumps(suites[0] if len(suites) == 1 else suites, indent=2)]
        case Kind.DICTIONARY:
            parts = [generate.dictionary_page(contracts)]
    return "\n".join(parts).rstrip("\n")


def _declared(folder: Path, subjects: list[str] | None) -> "list[Contract]":
    from fluvial.registry.contracts import load_contracts

    by_subject = {each.subject: each for each in load_contracts(folder)}
    for subject in subjects or ():
        if subject not in by_subject:
            known = ", ".join(by_subject) or "none"
            raise UnknownSubjectError(f"{subject}: no contract in {folder} has this subject; the subjects are {known}")
    return [by_subject[subject] for subject in subjects or by_subject]


def _of_parquet(path: Path, subject: str, key: str | None) -> "Contract":
    from fluvial.registry.contracts import Contract
    from fluvial.registry.generate import record_of_parquet

    topic = subject.removesuffix("-value").removesuffix("-key")
    name = re.sub(r"\W", "_", topic, flags=re.ASCII)
    schema = record_of_parquet(path, f"_{name}" if name[0].isdigit() else name, key=key)
    return Contract(
        producer="anyone",
        contact="nobody owns it",
        subject=subject,
        path=path,
        schema=schema,
        text=json.dumps(schema),
        compatibility="BACKWARD",
        topics=(topic,),
    )


def _registered(settings: Settings, subjects: list[str] | None) -> "list[Contract]":
    from fluvial.registry.contracts import Contract

    found = []
    with settings.registry.client() as client:
        for subject in subjects or sorted(client.subjects()):
            latest, owned = client.latest(subject), client.owner(subject) or {}
            schema = json.loads(latest.schema)
            found.append(
                Contract(
                    producer=owned.get("owner") or "anyone",
                    contact=owned.get("contact") or "nobody owns it",
                    subject=subject,
                    path=Path(subject),
                    schema=schema if isinstance(schema, dict) else {"type": schema},
                    text=latest.schema,
                    compatibility=client.level_in_scope(subject),
                    topics=(subject.removesuffix("-value").removesuffix("-key"),),
                )
            )
    return found
