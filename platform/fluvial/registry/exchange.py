"""
Subjects out of one registry and into another, with their ids: by the REST API alone, so that either may be Confluent's.

An export is JSON, one object a version or a subject's settings, in a file of lines or in a folder with a file each.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import quote

from fluvial.errors import FluvialError
from fluvial.registry.client import RegistryClient
from fluvial.registry.errors import RegistryError

FIELDS = ("schemaType", "references", "metadata", "ruleSet", "schema")
"""What makes a version besides its place; `id` and `version` are kept beside it."""

SETTINGS_FILE = "config.json"

ClientOf = Callable[[str], RegistryClient]


class ExchangeError(FluvialError):
    """An export cannot be read, or does not fit the registry it is imported into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A version that was in an export; `is_new` when this import put it there. Its id may be another one."""

    subject: str
    version: int
    id: int
    is_new: bool


def export_subjects(
    client: RegistryClient, subjects: Sequence[str] | None, *, deleted: bool
) -> Iterator[dict[str, Any]]:
    """
    Yield what is to be kept of subjects, of all when it is None: settings first, then versions in their order.

    `deleted` takes what is hidden along. Raises `RegistryError`.
    """
    for subject in sorted(client.subjects(deleted=deleted)) if subjects is None else subjects:
        settings = client.settings(subject)
        if settings is not None:
            yield {"subject": subject, "config": settings}
        live = set(client.versions(subject)) if subject in client.subjects() else set()
        for number in client.versions(subject, deleted=deleted):
            document = client.document(subject, number, deleted=deleted)
            kept = {name: document[name] for name in FIELDS if name in document}
            hidden = {} if number in live else {"deleted": True}
            yield {"subject": subject, "version": number, "id": document["id"], **kept, **hidden}


def write_lines(entries: Iterable[Mapping[str, Any]], out: TextIO) -> int:
    """Write an export as JSON lines; return how many versions it holds."""
    count = 0
    for entry in entries:
        out.write(json.dumps(entry, ensure_ascii=False) + "\n")
        count += "version" in entry
    return count


def write_folder(entries: Iterable[Mapping[str, Any]], folder: Path) -> int:
    """Write an export as a folder of subjects with a file a version; return how many versions it holds."""
    count = 0
    for entry in entries:
        place = folder / quote(entry["subject"], safe=" ")
        place.mkdir(parents=True, exist_ok=True)
        name = f"{entry['version']}.json" if "version" in entry else SETTINGS_FILE
        (place / name).write_text(json.dumps(entry, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        count += "version" in entry
    return count


def read_export(path: Path) -> list[dict[str, Any]]:
    """Read an export, a folder or a file of lines. Raises ExchangeError naming the place."""
    try:
        if path.is_dir():
            files = sorted(each for each in path.rglob("*.json"))
            texts = [(str(each), each.read_text(encoding="utf-8")) for each in files]
        else:
            lines = path.read_text(encoding="utf-8").splitlines()
            texts = [(f"{path}: line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ExchangeError(f"{path}: cannot be read: {error}") from error
    return [_entry(place, text) for place, text in texts]


def _entry(place: str, text: str) -> dict[str, Any]:
    try:
        entry = json.loads(text)
    except ValueError as error:
        raise ExchangeError(f"{place}: not JSON: {error}") from None
    is_version = isinstance(entry, dict) and all(
        isinstance(entry.get(name), kind) for name, kind in (("version", int), ("id", int), ("schema", str))
    )
    is_settings = isinstance(entry, dict) and isinstance(entry.get("config"), dict)
    if not (is_version or is_settings) or not isinstance(entry.get("subject"), str):
        raise ExchangeError(f"{place}: neither a version (subject, version, id, schema) nor the settings of a subject")
    return dict(entry)


def import_subjects(client_of: ClientOf, entries: Iterable[Mapping[str, Any]], *, keep_ids: bool) -> Iterator[Imported]:
    """
    Put an export into a registry, and yield each version as it is there; run again it changes nothing.

    With `keep_ids` each subject is in mode IMPORT while its versions come, and has its former mode afterwards. Raises
    `RegistryError` for what the registry refuses, an id that another schema has among it.
    """
    found = list(entries)
    versions = _in_order([each for each in found if "version" in each])
    for entry in versions:
        yield _import(client_of(entry["subject"]), entry, keep_ids=keep_ids)
    for entry in found:
        client, subject = client_of(entry["subject"]), entry["subject"]
        if "config" in entry and client.settings(subject) != entry["config"]:
            client.put_settings(subject, entry["config"])
    for entry in versions:
        # Last, because what another schema refers to cannot be hidden before that is.
        client = client_of(entry["subject"])
        if entry.get("deleted") and entry["version"] in client.versions(entry["subject"]):
            client.delete_version(entry["subject"], entry["version"])


def _import(client: RegistryClient, entry: Mapping[str, Any], *, keep_ids: bool) -> Imported:
    subject, number = entry["subject"], entry["version"]
    content = {name: entry[name] for name in FIELDS if name in entry}
    if not keep_ids:
        before = client.look_up(subject, entry["schema"]) if not entry.get("references") else None
        schema_id = client.register_document(subject, content)
        return Imported(subject=subject, version=number, id=schema_id, is_new=before is None)
    known = _known(client, subject, number)
    if known is not None:
        if (known["id"], known["schema"]) != (entry["id"], entry["schema"]):
            raise ExchangeError(
                f"{subject} version {number} is schema id {known['id']} there and {entry['id']} in the export; "
                "import under new ids, or into a registry without this subject"
            )
        return Imported(subject=subject, version=number, id=known["id"], is_new=False)
    mode = client.mode(subject)
    client.set_mode("IMPORT", subject, force=True)
    try:
        schema_id = client.register_document(subject, {**content, "id": entry["id"], "version": number})
    finally:
        if mode is None:
            client.delete_mode(subject)
        else:
            client.set_mode(mode, subject)
    return Imported(subject=subject, version=number, id=schema_id, is_new=True)


def _known(client: RegistryClient, subject: str, number: int) -> dict[str, Any] | None:
    try:
        return client.document(subject, number, deleted=True)
    except RegistryError as error:
        if error.status != 404:
            raise
        return None


def _in_order(versions: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Each version after those that it refers to, and after the earlier ones of its subject."""
    by_place = {(each["subject"], each["version"]): each for each in versions}
    done: dict[tuple[str, int], Mapping[str, Any]] = {}
    waiting: list[tuple[tuple[str, int], bool]] = [(place, False) for place in sorted(by_place, reverse=True)]
    visited: set[tuple[str, int]] = set()
    while waiting:
        place, below_is_done = waiting.pop()
        if below_is_done:
            done.setdefault(place, by_place[place])
        elif place in by_place and place not in visited:
            visited.add(place)
            waiting.append((place, True))
            needed = [(each["subject"], each["version"]) for each in by_place[place].get("references") or ()]
            earlier = [other for other in by_place if other[0] == place[0] and other[1] < place[1]]
            waiting += [(each, False) for each in sorted([*needed, *earlier], reverse=True)]
    return list(done.values())
