"""`fluvial schema check`: would a change of a contract break the registry's rules, or a table, or a pipeline?"""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluvial.cli import terminal
from fluvial.cli.options import with_registry
from fluvial.cli.schema.schema_sources import CONTRACTS, Source, Subject, subject_of_file
from fluvial.config import Settings
from fluvial.errors import FluvialError
from fluvial.extras import needed

if TYPE_CHECKING:
    from fluvial.quality import Suite
    from fluvial.registry.client import RegistryClient
    from fluvial.registry.contracts import CheckResult
    from fluvial.tables.declare.declarations import Declaration
    from fluvial.tables.drive.downstream import Impact

EXIT_BREAKS = 1
EXIT_NOT_CHECKED = 2
VALUE = "-value"


class Report(StrEnum):
    """How the verdict is printed."""

    HUMAN = "human"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One schema in a file, and how it stands with the registry."""

    subject: str
    path: Path
    text: str
    status: str
    messages: tuple[str, ...]

    @property
    def topic(self) -> str | None:
        """The topic whose values it describes, where it does and differs from what is registered."""
        if self.status in {"unchanged", "outdated"} or not self.subject.endswith(VALUE):
            return None
        return self.subject.removesuffix(VALUE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A change, and what it does downstream."""

    change: Change
    impacts: tuple["Impact", ...] = ()

    @property
    def is_ok(self) -> bool:
        """Whether it may be shipped."""
        from fluvial.registry.contracts import WRONG

        return self.change.status not in WRONG and not any(each.breaks for each in self.impacts)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "subject": self.change.subject,
            "file": str(self.change.path),
            "status": self.change.status,
            "ok": self.is_ok,
            "messages": list(self.change.messages),
            "downstream": [each.as_json() for each in self.impacts],
        }

    def lines(self) -> list[str]:
        """For a reader."""
        details = [*self.change.messages, *map(str, self.impacts)]
        return [f"{self.change.subject}: {self.change.status}", *(f"  {line}" for line in details)]


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Example:  fluvial schema check new_orders.avsc --subject orders-value")(check)


@with_registry
def check(
    *,
    settings: Settings,
    path: Source = CONTRACTS,
    subject: Subject = None,
    form: Annotated[Report, typer.Option("--format", help="Lines to read, or JSON for programs.")] = Report.HUMAN,
    project: Annotated[
        str | None,
        typer.Option(
            "--project",
            metavar="MODULE",
            help="Module of the declared tables (default: pipelines, if it exists).",
            show_default=False,
        ),
    ] = None,
    registry_only: Annotated[
        bool, typer.Option("--registry-only", help="Leave out the tables and pipelines that read the topic.")
    ] = False,
) -> None:
    """
    Say whether contracts, or one schema, could be shipped now; changes nothing.

    A change is held against the registry, and against every declared table and pipeline that reads the topic. Status 0:
    nothing breaks; 1: something would, and it says what; 2: it could not be checked.
    """
    try:
        verdicts = _verdicts(settings, path, subject, project=project, registry_only=registry_only)
    except FluvialError as error:
        terminal.complain(str(error))
        raise typer.Exit(EXIT_NOT_CHECKED) from error
    if form is Report.JSON:
        ok = all(each.is_ok for each in verdicts)
        terminal.answer(json.dumps({"ok": ok, "subjects": [each.as_json() for each in verdicts]}))
    else:
        for verdict in verdicts:
            for line in verdict.lines():
                terminal.answer(line)
    wrong = [each.change for each in verdicts if not each.is_ok]
    if wrong:
        terminal.complain(
            f"{', '.join(f'{each.path} ({each.subject})' for each in wrong)}: not to be shipped like this"
        )
        raise typer.Exit(EXIT_BREAKS)


def _verdicts(
    settings: Settings, path: Path, subject: str | None, *, project: str | None, registry_only: bool
) -> list[Verdict]:

    with settings.registry.client() as client:
        changes = _changes(client, path, subject)
        changed = {each.topic: each for each in changes if each.topic is not None}
        declarations = {} if registry_only or not changed else _declarations(settings, project)
        read = {topic: change for topic, change in changed.items() if _is_read(declarations, topic)}
        if not read:
            return [Verdict(change=each) for each in changes]
        impacts = _downstream(client, settings, declarations, changes, read)
    return [Verdict(change=each, impacts=impacts.get(each.subject, ())) for each in changes]


def _changes(client: "RegistryClient", path: Path, subject: str | None) -> list[Change]:
    from fluvial.registry.contracts import check_all, check_text, load_contracts
    from fluvial.serde.encoding import read_schema

    one = subject_of_file(path, subject)
    if one is None:
        return [_change(each) for each in check_all(client, load_contracts(path))]
    text = read_schema(path)
    status, messages = check_text(client, one, text)
    return [Change(subject=one, path=path, text=text, status=status, messages=messages)]


def _change(result: "CheckResult") -> Change:
    contract = result.contract
    return Change(
        subject=contract.subject,
        path=contract.path,
        text=contract.text,
        status=result.status,
        messages=result.messages,
    )


def _declarations(settings: Settings, project: str | None) -> "Mapping[str, Declaration]":
    from fluvial.tables.declare.project import NoProjectError, load_project

    if project is not None:
        return load_project(project)
    try:
        return load_project(settings.project)
    except NoProjectError:
        return {}  # a producer's own repository declares no tables


def _is_read(declarations: "Mapping[str, Declaration]", topic: str) -> bool:
    from fluvial.tables.drive.downstream import readers_of

    return bool(readers_of(declarations, topic))


def _downstream(
    client: "RegistryClient",
    settings: Settings,
    declarations: "Mapping[str, Declaration]",
    changes: Sequence[Change],
    read: Mapping[str, Change],
) -> "dict[str, tuple[Impact, ...]]":
    from fluvial.spark.avro import Contract
    from fluvial.spark.session import build_session
    from fluvial.tables.drive.downstream import impacts

    contract_of = _contracts(client, changes)
    suites = _suites()
    found = {}
    with tempfile.TemporaryDirectory(prefix="fluvial-check-") as folder:
        # One JVM for a few plans over no records; no table of the warehouse is asked.
        own = replace(settings, warehouse=folder, spark_master="local[1]")
        spark = build_session(own, "fluvial schema check", say=terminal.say)
        try:
            for topic, change in read.items():
                if change.status == "refused":
                    continue
                found[change.subject] = tuple(
                    impacts(
                        declarations,
                        spark,
                        topic=topic,
                        before=contract_of(topic) if change.status != "new" else None,
                        after=Contract.proposed(change.subject, change.text),
                        other=contract_of,
                        suites=suites,
                    )
                )
        finally:
            spark.stop()
    return found


def _contracts(client: "RegistryClient", changes: Sequence[Change]) -> "Callable[[str], Any]":
    """What is registered for a topic, or else what stands in the files."""
    from functools import cache

    from fluvial.spark.avro import Contract, ContractError, read_contract

    in_files = {each.subject: each.text for each in changes}

    @cache
    def contract_of(topic: str) -> Contract | None:
        try:
            return read_contract(client, topic)
        except ContractError:
            text = in_files.get(f"{topic}{VALUE}")
            return None if text is None else Contract.proposed(f"{topic}{VALUE}", text)

    return contract_of


def _suites() -> "list[Suite]":
    """The suites of the project's Dagster code, where it has some."""
    with needed():
        from fluvial.orchestration.run.code_location import DEFAULT_MODULE, definitions_module
        from fluvial.quality.discovery import suites_in
    module = definitions_module(Path.cwd())
    return [] if module == DEFAULT_MODULE else suites_in(module)
