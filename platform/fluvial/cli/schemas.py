"""`fluvial schema`: the contracts in a folder, or one schema, against the registry."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fluvial.cli import terminal
from fluvial.cli.options import DataDir, Json, RegistryUrl, settings_of
from fluvial.errors import FluvialError

if TYPE_CHECKING:
    from fluvial.registry.contracts import CheckResult

CONTRACTS = Path("schemas")

app = typer.Typer(help="Register, list and check Avro schemas.", no_args_is_help=True, rich_markup_mode=None)

Source = Annotated[
    Path,
    typer.Argument(metavar="PATH", help="Folder of contracts (schemas/<producer>/), or an .avsc file with --subject."),
]
Subject = Annotated[
    str | None, typer.Option("--subject", help="Subject of the schema, when PATH is a file.", show_default=False)
]


class SchemaCheckError(FluvialError):
    """A schema could not be registered as it stands."""


@app.command(epilog="Example:  fluvial schema register schemas")
def register(
    path: Source = CONTRACTS, subject: Subject = None, data_dir: DataDir = None, registry_url: RegistryUrl = None
) -> None:
    """Register every contract of a folder, or one schema; what is registered already stays as it is."""
    from fluvial.cli.encoding import read_schema
    from fluvial.registry.client import RegistryClient
    from fluvial.registry.contracts import load_contracts, register_all

    settings = settings_of(data_dir, registry_url=registry_url)
    one = _is_file(path, subject)
    if one is not None:
        text = read_schema(path)
        with RegistryClient(settings.registry_url) as client:
            terminal.answer(f"{one}: schema id {client.register(one, text)}")
        return
    contracts = load_contracts(path)
    with RegistryClient(settings.registry_url) as client:
        register_all(
            client,
            contracts,
            lambda done: terminal.answer(
                f"{done.contract.subject}: schema id {done.id}{'' if done.is_new else ', was there already'}"
            ),
        )


@app.command("list", epilog="Example:  fluvial schema list --json")
def list_subjects(as_json: Json = False, data_dir: DataDir = None, registry_url: RegistryUrl = None) -> None:
    """List the subjects with their latest version and schema id."""
    from fluvial.registry.client import RegistryClient

    settings = settings_of(data_dir, registry_url=registry_url)
    with RegistryClient(settings.registry_url) as client:
        found = [client.latest(subject) for subject in sorted(client.subjects())]
    if as_json:
        rows = [{"subject": each.subject, "version": each.version, "id": each.id} for each in found]
        terminal.answer(json.dumps(rows))
        return
    for each in found:
        terminal.answer(f"{each.subject}  version {each.version}  schema id {each.id}")


@app.command(epilog="Example:  fluvial schema check new_orders.avsc --subject orders-value")
def check(
    path: Source = CONTRACTS, subject: Subject = None, data_dir: DataDir = None, registry_url: RegistryUrl = None
) -> None:
    """Say whether contracts, or one schema, could be registered now; changes nothing."""
    from fluvial.cli.encoding import read_schema
    from fluvial.registry.client import RegistryClient
    from fluvial.registry.contracts import check_all, load_contracts

    settings = settings_of(data_dir, registry_url=registry_url)
    one = _is_file(path, subject)
    if one is not None:
        text = read_schema(path)
        with RegistryClient(settings.registry_url) as client:
            messages = client.check(one, text)
        if messages:
            raise SchemaCheckError(f"{path}: incompatible with {one}: {'; '.join(messages)}")
        terminal.answer(f"{one}: compatible")
        return
    contracts = load_contracts(path)
    with RegistryClient(settings.registry_url) as client:
        results = check_all(client, contracts)
    for result in results:
        terminal.answer(f"{result.contract.subject}: {result.status}")
    _require_ok(results)


def _is_file(path: Path, subject: str | None) -> str | None:
    """Return the subject when PATH is one schema; raises a usage error when path and subject do not fit."""
    if path.is_dir():
        if subject is not None:
            raise typer.BadParameter(
                f"--subject {subject}: {path} is a folder, whose owner.toml files name the subjects"
            )
        return None
    if not path.exists():
        raise typer.BadParameter(f"{path}: there is no such file or folder")
    if subject is None:
        raise typer.BadParameter(f"{path} is a file: name its subject with --subject")
    return subject


def _require_ok(results: "list[CheckResult]") -> None:
    wrong = [each for each in results if not each.is_ok]
    if wrong:
        raise SchemaCheckError(
            "; ".join(f"{each.contract.path}: {each.status}: {'; '.join(each.messages)}" for each in wrong)
        )
