"""`fluvial schema owner`, `transfer`, `producer`: who answers for which subject."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from fluvial.cli import terminal
from fluvial.cli.options import AnswerFormat, Form, with_json, with_registry
from fluvial.config import Settings
from fluvial.errors import FluvialError

Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help="Such as orders-value.", show_default=False)]


class NoOwnerError(FluvialError):
    """Nobody owns the subject, or can own one."""


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command(epilog="Example:  fluvial schema owner flight_events-value")(owner)
    app.command(epilog="Example:  fluvial schema transfer weather-value --to climate_service")(transfer)
    app.command(
        epilog="Example:  fluvial schema producer climate_service --contact desk@climate.example "
        "--credentials env:CLIMATE_PASSWORD"
    )(producer)


@with_registry
@with_json
def owner(subject: Subject, answer_format: AnswerFormat = Form.TABLE, *, settings: Settings) -> None:
    """Say who owns a subject and how to reach them, and through whose hands it went."""

    with settings.registry.client() as client:
        owned = client.owner(subject)
    if owned is None:
        raise NoOwnerError(
            f"{subject}: has no owner; its producer claims it with `fluvial schema register` (owner.toml)"
        )
    if answer_format is Form.JSON:
        terminal.answer(json.dumps(owned))
        return
    now = "nobody" if owned["owner"] is None else f"{owned['owner']}, {owned['contact']}"
    terminal.answer(f"{subject}: {now}")
    for change in owned["history"]:
        terminal.answer(f"  {_change(change)}")


@with_registry
def transfer(
    subject: Subject,
    to: Annotated[
        str | None, typer.Option("--to", metavar="PRODUCER", help="The new owner.", show_default=False)
    ] = None,
    release: Annotated[
        bool, typer.Option("--release", help="Release the subject: it has no owner afterwards.")
    ] = False,
    *,
    settings: Settings,
) -> None:
    """
    Hand a subject to another producer, which the registry must know.

    The owner does it, or an administrator (fluvial.registry.admins), by FLUVIAL_REGISTRY_USER_INFO=NAME:PASSWORD. The
    registry keeps who did it and when; see `fluvial schema owner`.
    """
    from fluvial.cli.schema.registries import as_owner

    if (to is None) is not release:
        raise typer.BadParameter("name the new owner with --to, or release the subject with --release")
    with settings.registry.client() as client:
        owned = as_owner(client, settings, subject).give(subject, to)
    terminal.answer(f"{subject}: {_change(owned['history'][-1]) if owned['history'] else 'it has no owner'}")


@with_registry
@with_json
def producer(
    *,
    settings: Settings,
    name: Annotated[str, typer.Argument(metavar="PRODUCER", help="Such as weather_service.", show_default=False)],
    contact: Annotated[
        str | None, typer.Option("--contact", metavar="ADDRESS", help="Introduce it, or change this.")
    ] = None,
    credentials: Annotated[
        str | None,
        typer.Option(
            "--credentials",
            metavar="REFERENCE",
            help="Its password: env:NAME or file:PATH (default: the one that the local platform stores).",
        ),
    ] = None,
    new_credentials: Annotated[
        str | None, typer.Option("--new-credentials", metavar="REFERENCE", help="Change its password to this.")
    ] = None,
    answer_format: AnswerFormat = Form.TABLE,
) -> None:
    """Show a producer and what it owns; introduce it, or change its contact or password."""
    from fluvial.local.credentials import local_credentials
    from fluvial.registry.credentials import read_secret

    with settings.registry.client() as client:
        if contact is not None or new_credentials is not None:
            kept = local_credentials(settings.data_dir, settings.registry_url)
            asking = client
            if credentials is not None:
                asking = client.acting_as(name, read_secret(credentials, folder=Path()))
            elif client.name is None and kept is not None:
                asking = client.acting_as(name, kept.ensure(name))
            password = None if new_credentials is None else read_secret(new_credentials, folder=Path())
            if not asking.introduce(name, contact, password=password):
                raise NoOwnerError(f"the registry at {client.url} knows of no owners")
        found = client.producer(name)
    if answer_format is Form.JSON:
        terminal.answer(json.dumps(found))
        return
    terminal.answer(f"{found['producer']}, {found['contact']}")
    for subject in found["subjects"]:
        terminal.answer(f"  owns {subject}")


def _change(change: dict[str, Any]) -> str:
    when = datetime.fromtimestamp(change["at"] / 1000, UTC).isoformat(timespec="seconds")
    return f"{when}  {change['by']}: {change['from'] or 'nobody'} -> {change['to'] or 'nobody'}"
