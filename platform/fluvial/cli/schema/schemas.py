"""`fluvial schema`: contracts into the registry, and all the commands about what is there."""

import json
from typing import TYPE_CHECKING

import typer

from fluvial.cli import terminal
from fluvial.cli.options import AnswerFormat, Form, with_cluster_and_registry, with_json, with_registry
from fluvial.cli.schema import schema_check, schema_exchange, schema_generate, schema_owners, schema_views
from fluvial.cli.schema.schema_sources import CONTRACTS, Source, Subject, subject_of_file
from fluvial.config import Settings
from fluvial.errors import FluvialError

if TYPE_CHECKING:
    from fluvial.registry.contracts import Contract

app = typer.Typer(help="Register, check, compare and hand over schemas.", no_args_is_help=True, rich_markup_mode=None)
schema_check.add_to(app)
schema_views.add_to(app)
schema_exchange.add_to(app)
schema_generate.add_to(app)
schema_owners.add_to(app)


class OutdatedFileError(FluvialError):
    """A file holds an older version of its subject than the registry's latest."""


@app.command(epilog="Example:  fluvial schema register schemas")
@with_cluster_and_registry
def register(path: Source = CONTRACTS, subject: Subject = None, *, settings: Settings) -> None:
    """
    Register every contract of a folder, or one schema; what is registered already stays as it is.

    Topics that owner.toml describes in a table, [topics.orders], are created, or given the settings that it has.
    """
    from fluvial.cli.schema.registries import as_owner
    from fluvial.local.credentials import passwords_for
    from fluvial.registry.contracts import load_contracts, register_all
    from fluvial.serde.encoding import read_schema

    one = subject_of_file(path, subject)
    if one is not None:
        text = read_schema(path)
        with settings.registry.client() as client:
            terminal.answer(f"{one}: schema id {as_owner(client, settings, one).register(one, text)}")
        return
    contracts = load_contracts(path)
    with settings.registry.client() as client:
        done = register_all(
            client,
            contracts,
            lambda done: terminal.answer(
                f"{done.contract.subject}: schema id {done.id}{'' if done.is_new else ', already existed'}"
            ),
            passwords=passwords_for(settings.data_dir, settings.registry_url),
        )
    _ensure_topics(settings, contracts)
    outdated = [each.outdated for each in done if each.outdated is not None]
    if outdated:
        raise OutdatedFileError("; ".join(outdated))


def _ensure_topics(settings: Settings, contracts: "list[Contract]") -> None:
    from fluvial.kafka.admin import admin_of, describe_cluster
    from fluvial.registry.contract_topics import described_topics, ensure_topics

    described = described_topics(contracts)
    if not described:
        return
    admin = admin_of(settings.cluster)
    there = {name: len(each.partitions) for name, each in describe_cluster(settings, admin).topics.items()}
    for sentence in ensure_topics(admin, described, there):
        terminal.answer(sentence)


@app.command("list", epilog="Example:  fluvial schema list --format json")
@with_registry
@with_json
def list_subjects(answer_format: AnswerFormat = Form.TABLE, *, settings: Settings) -> None:
    """List the subjects with their latest version and schema id."""

    with settings.registry.client() as client:
        found = [client.latest(subject) for subject in sorted(client.subjects())]
    if answer_format is Form.JSON:
        rows = [{"subject": each.subject, "version": each.version, "id": each.id} for each in found]
        terminal.answer(json.dumps(rows))
        return
    terminal.table(("subject", "version", "schema id"), ((each.subject, each.version, each.id) for each in found))
