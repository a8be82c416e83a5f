"""Subjects out of one registry and into another, with their ids."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_registry_state import record_schema

from fluvial.registry.client import RegistryClient
from fluvial.registry.errors import RegistryError
from fluvial.registry.exchange import (
    ExchangeError,
    export_subjects,
    import_subjects,
    read_export,
    write_folder,
    write_lines,
)

POINT = '{"type":"record","name":"Point","fields":[{"name":"x","type":"int"}]}'
LINE = '{"type":"record","name":"Line","fields":[{"name":"from","type":"Point"}]}'


@pytest.fixture(scope="module")
def source(shared_server) -> Iterator[RegistryClient]:
    """A registry whose ids do not begin at 1, with settings, a reference, and a version that is hidden."""
    with RegistryClient(shared_server.url) as client:
        client.register("elsewhere", '"bytes"')
        client.register("a/points", POINT)
        client.register("b-value", record_schema())
        client.register("b-value", record_schema("late"))
        client.set_config("NONE", "b-value")
        reference = {"name": "Point", "subject": "a/points", "version": 1}
        # Its name sorts before what it refers to.
        client.register_document("a-lines", {"schema": LINE, "references": [reference]})
        client.delete_version("b-value", 1)
        yield client


@pytest.fixture
def target(registry_server) -> Iterator[RegistryClient]:
    with RegistryClient(registry_server.url) as client:
        yield client


def exported(client: RegistryClient, *subjects: str) -> list[dict[str, Any]]:
    return list(export_subjects(client, subjects or None, deleted=True))


def test_a_registry_goes_into_another_with_its_ids(source, target, tmp_path: Path) -> None:
    wanted = exported(source, "a-lines", "a/points", "b-value")
    assert write_folder(wanted, tmp_path / "folder") == 4
    with (tmp_path / "lines.jsonl").open("w") as out:
        assert write_lines(wanted, out) == 4
    for path in (tmp_path / "folder", tmp_path / "lines.jsonl"):
        entries = read_export(path)
        assert sorted(map(repr, entries)) == sorted(map(repr, wanted))
    done = list(import_subjects(lambda subject: target, entries, keep_ids=True))
    assert all(each.is_new for each in done)
    assert exported(target, "a-lines", "a/points", "b-value") == wanted
    assert target.mode("b-value") is None
    assert target.versions("b-value") == [2]
    assert target.get_config("b-value") == "NONE"
    # Again changes nothing, and what comes next is above what came.
    assert not any(each.is_new for each in import_subjects(lambda subject: target, entries, keep_ids=True))
    assert exported(target) == wanted
    assert target.register("next", '"double"') > max(each["id"] for each in wanted if "id" in each)


def test_new_ids_where_the_registry_has_its_own(source, target) -> None:
    target.register("own", '"float"')
    target.register("own2", POINT.replace("Point", "Other"))
    entries = exported(source, "a-lines", "a/points")
    done = {each.subject: each for each in import_subjects(lambda subject: target, entries, keep_ids=False)}
    assert {subject: each.is_new for subject, each in done.items()} == {"a-lines": True, "a/points": True}
    assert target.document("a-lines", 1)["references"] == [{"name": "Point", "subject": "a/points", "version": 1}]
    again = list(import_subjects(lambda subject: target, entries, keep_ids=False))
    assert {each.subject: each.id for each in again} == {subject: each.id for subject, each in done.items()}


def test_ids_that_are_taken_are_refused(source, target) -> None:
    entries = exported(source, "a/points")
    for number in range(entries[-1]["id"]):
        target.register(f"taken{number}", record_schema(f"f{number}"))
    with pytest.raises(RegistryError, match="Overwrite new schema with id"):
        list(import_subjects(lambda subject: target, entries, keep_ids=True))
    assert target.mode("a/points") is None, "the mode is as it was, also after a refusal"
    target.register("a/points", '"int"')
    with pytest.raises(ExchangeError, match="a/points version 1 is schema id"):
        list(import_subjects(lambda subject: target, entries, keep_ids=True))


@pytest.mark.parametrize("line", ["{", "[]", '{"subject": "s"}', '{"subject": 1, "config": {}}'])
def test_what_is_no_export(tmp_path: Path, line: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(f"{json.dumps({'subject': 's', 'config': {}})}\n\n{line}\n")
    with pytest.raises(ExchangeError, match=r"x.jsonl: line 3: "):
        read_export(path)
    with pytest.raises(ExchangeError, match="cannot be read"):
        read_export(tmp_path / "none")


def test_an_export_leaves_hidden_versions_out_unless_asked(source) -> None:
    out = io.StringIO()
    assert write_lines(export_subjects(source, ["b-value"], deleted=False), out) == 1
    assert [json.loads(line).get("version") for line in out.getvalue().splitlines()] == [None, 2]
