"""`fluvial schema generate`: from a contract to what is written by hand otherwise."""

import json
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
            help="spark: a StructType; ddl: a Delta table; dataclasses: Python; expectations: a suite of Great "
            "Expectations; dictionary: a page of Markdown.",
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
) -> None:
    """Write code, statements or a page that follow from contracts, on stdout."""
    found = _registered(settings, subjects) if from_registry else _declared(contracts, subjects)
    terminal.answer(_text(kind, found))


def _text(kind: Kind, contracts: "list[Contract]") -> str:
    from fluvial.registry import generate

    match kind:
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
