"""`fluvial schema show`, `diff`, `log`: what a subject says, what changed, and when."""

import difflib
import json
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluvial.cli import terminal
from fluvial.cli.options import AnswerFormat, Form, with_registry
from fluvial.config import Settings

if TYPE_CHECKING:
    from fluvial.registry.client import RegistryClient

AVRO = "AVRO"
LATEST = "latest"

Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help="Such as orders-value.", show_default=False)]


class Shown(StrEnum):
    """How a schema is printed."""

    TABLE = "table"
    JSON = "json"
    SCHEMA = "schema"


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command(epilog="Example:  fluvial schema show flight_events-value")(show)
    app.command(epilog="Example:  fluvial schema diff orders-value 1 2")(diff)
    app.command(epilog="Example:  fluvial schema log orders-value")(log)


@with_registry
def show(
    subject: Subject,
    version: Annotated[str, typer.Argument(metavar="[VERSION]", help="A number, or latest.")] = LATEST,
    form: Annotated[
        Shown, typer.Option("--format", help="Its fields as a table or JSON, or the schema as it is stored.")
    ] = Shown.TABLE,
    *,
    settings: Settings,
) -> None:
    """Show one version of a subject: its fields with their types, defaults and meaning, or its text."""
    from fluvial.registry.fields import fields_of

    with settings.registry.client() as client:
        document = client.document(subject, version)
    is_avro = document.get("schemaType", AVRO) == AVRO
    if form is Shown.SCHEMA or (form is Shown.TABLE and not is_avro):
        terminal.answer(document["schema"])
        return
    schema = json.loads(document["schema"]) if is_avro else None
    fields = fields_of(schema)
    if form is Shown.JSON:
        terminal.answer(json.dumps({**document, "fields": [each.as_json() for each in fields]}))
        return
    terminal.answer(f"{subject} version {document['version']}, schema id {document['id']}")
    if isinstance(schema, dict) and schema.get("doc"):
        terminal.answer(str(schema["doc"]))
    if not fields:
        terminal.answer(document["schema"])
    rows = (
        (
            each.path,
            each.type,
            "null" if each.nullable else "",
            "" if each.default is None else each.default,
            " ".join([each.doc, *(f"{name}={value}" for name, value in each.properties.items())]).strip(),
        )
        for each in fields
    )
    terminal.table(("field", "type", "or", "default", "meaning"), rows)


@with_registry
def diff(
    *,
    settings: Settings,
    subject: Subject,
    old: Annotated[
        str | None, typer.Argument(metavar="[OLD]", help="A version (default: the one before).", show_default=False)
    ] = None,
    new: Annotated[
        str, typer.Argument(metavar="[NEW]", help="A version (default: latest).", show_default=False)
    ] = LATEST,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="PATH", help="Compare a file with OLD.", show_default=False)
    ] = None,
    form: AnswerFormat = Form.TABLE,
) -> None:
    """Say which fields two versions, or a version and a file, differ in, and whether the one may follow the other."""
    from fluvial.registry.fields import field_changes

    with settings.registry.client() as client:
        after = _document_of(file) if file is not None else client.document(subject, new)
        before = client.document(subject, old or (LATEST if file is not None else _before(client, subject, after)))
        level = client.level_in_scope(subject)
        draft: dict[str, Any] = {name: after[name] for name in ("schema", "schemaType", "references") if name in after}
        messages = client.check_against(subject, before["version"], draft)
    both_avro = {before.get("schemaType", AVRO), after.get("schemaType", AVRO)} == {AVRO}
    changes = field_changes(json.loads(before["schema"]), json.loads(after["schema"])) if both_avro else []
    if form is Form.JSON:
        answer = {
            "subject": subject,
            "before": before["version"],
            "after": after.get("version"),
            "level": level,
            "compatible": not messages,
            "messages": messages,
            "changes": [each.as_json() for each in changes],
        }
        terminal.answer(json.dumps(answer))
        return
    terminal.answer(f"{subject}: version {before['version']} -> {file or 'version ' + str(after['version'])}")
    for change in changes:
        first, *more = change.details
        terminal.answer(f"  {change.kind:<8} {change.path}: {first}")
        for line in more:
            terminal.answer(f"  {'':<8} {'':<{len(change.path)}}  {line}")
    if not changes:
        _answer_text(before, after)
    terminal.answer(f"{level}: {'compatible' if not messages else 'incompatible'}")
    for message in messages:
        terminal.answer(f"  {message}")


@with_registry
def log(subject: Subject, form: AnswerFormat = Form.TABLE, *, settings: Settings) -> None:
    """List the versions of a subject with their time, id and author, and the changes of its owner."""

    with settings.registry.client() as client:
        versions = _versions(client, subject)
        owned = client.owner(subject)
    history = [] if owned is None else owned["history"]
    if form is Form.JSON:
        terminal.answer(json.dumps({"subject": subject, "versions": versions, "owners": history}))
        return
    rows: list[tuple[int, str, str, str]] = []
    for each in versions:
        hidden = ", deleted" if each["deleted"] else ""
        rows.append(
            (each["at"] or 0, f"version {each['version']}", f"schema id {each['id']}{hidden}", each["by"] or "")
        )
    for each in history:
        rows.append((each["at"], "owner", f"{each['from'] or 'nobody'} -> {each['to'] or 'nobody'}", each["by"]))
    lines = ((_when(at), what, how, who) for at, what, how, who in sorted(rows, key=lambda row: row[0]))
    terminal.table(("time", "what", "", "who"), lines)


def _versions(client: "RegistryClient", subject: str) -> list[dict[str, Any]]:
    kept = client.registrations(subject)
    if kept is not None:
        return kept
    # Another registry: newer ones of Confluent's say when, none says who.
    live = client.versions(subject)
    documents = [client.document(subject, number, deleted=True) for number in client.versions(subject, deleted=True)]
    return [
        {
            "version": each["version"],
            "id": each["id"],
            "at": each.get("ts"),
            "by": None,
            "deleted": each["version"] not in live,
        }
        for each in documents
    ]


def _before(client: "RegistryClient", subject: str, after: dict[str, Any]) -> int:
    earlier = [number for number in client.versions(subject) if number < after["version"]]
    if not earlier:
        raise typer.BadParameter(f"{subject} has no version before {after['version']}; give a file with --file")
    return max(earlier)


def _document_of(path: Path) -> dict[str, Any]:
    from fluvial.serde.encoding import read_schema

    return {"schema": read_schema(path)}


def _answer_text(before: dict[str, Any], after: dict[str, Any]) -> None:
    old, new = _lines_of(before["schema"]), _lines_of(after["schema"])
    for line in difflib.unified_diff(old, new, "before", "after", lineterm=""):
        terminal.answer(f"  {line}")


def _lines_of(text: str) -> list[str]:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False).splitlines()
    except ValueError:
        return text.splitlines()


def _when(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds") if at_ms else ""
