"""Tests of commands and fixtures that `test_extras.py` runs where only the core is installed."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from fluvial.cli.main import execute
from fluvial.cli.run.demo import DemoError, load
from fluvial.cli.tree import whole
from fluvial.extras import MissingExtraError
from fluvial.registry.formats.protobuf.parse import parse
from fluvial.registry.formats.schema_kind import SchemaSyntaxError
from fluvial.testing import embedded_platform
from log_broker.server.embedded import EmbeddedBroker


def commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*words, name))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A platform whose addresses commands find, and in the working directory a project with its topic."""
    folder = tmp_path_factory.mktemp("project")
    with embedded_platform() as platform, pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLUVIAL_BOOTSTRAP_SERVERS", platform.bootstrap_servers)
        patch.setenv("FLUVIAL_REGISTRY_URL", platform.registry_url)
        patch.chdir(folder)
        assert execute(["init", "shop"]) == 0
        patch.chdir(folder / "shop")
        assert execute(["schema", "register"]) == 0
        assert execute(["topic", "create", "orders", "--partitions", "2"]) == 0
        yield


def test_each_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words in commands(typer.main.get_command(whole())):
        assert execute([*words, "--help"]) == 0, words
        assert "Usage: fluvial" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["version"]) == 0
    said = capsys.readouterr().out
    for name in ("fluvial", "python", "librdkafka", "confluent-kafka", "jars delta-spark", "java"):
        assert name in said


def test_a_broker_for_tests(kafka_broker: EmbeddedBroker) -> None:
    assert kafka_broker.bootstrap_servers


@pytest.mark.usefixtures("project")
def test_topics_records_and_schemas(capfd: pytest.CaptureFixture[str]) -> None:
    Path("orders.json").write_text('{"order_id": "a1", "customer": "ada", "amount": 12.5, "ordered_at": 0}\n')
    avro = ("--subject", "orders-value", "--key-field", "customer", "--file", "orders.json")
    assert execute(["topic", "list"]) == 0
    assert execute(["schema", "list"]) == 0
    assert execute(["topic", "produce", "orders", *avro]) == 0
    assert execute(["topic", "consume", "orders", "--from-beginning", "--to-end"]) == 0
    assert '"order_id": "a1"' in capfd.readouterr().out


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("sql x", "sql"),
        ("serve", "serve"),
        ("table verify state.customers", "spark"),
        ("table adopt state.customers", "spark"),
        ("run", "dagster"),
        ("run --dry-run", "dagster"),
        ("ui", "dagster"),
        ("topic produce orders --file x.parquet --input-format parquet --subject orders-value", "spark"),
    ],
)
@pytest.mark.usefixtures("project")
def test_a_command_names_the_extra_that_it_needs(words: str, extra: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("x.parquet").touch()
    capsys.readouterr()
    assert execute(words.split()) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count(os.linesep) == 1
    assert said.err.startswith("error: ")
    assert said.err.endswith(f' is not installed: pip install "fluvial[{extra}]"\n')


@pytest.mark.usefixtures("project")
def test_a_changed_contract_with_readers_is_not_checked_by_half(capsys: pytest.CaptureFixture[str]) -> None:
    contract = Path("schemas/shop/orders.avsc")
    contract.write_text(contract.read_text().replace('"order_id"', '"order_number"'))
    assert execute(["schema", "check"]) == 2
    assert 'pip install "fluvial[' in capsys.readouterr().err
    assert execute(["schema", "check", "--registry-only"]) == 1


def test_protobuf_schemas() -> None:
    text = 'syntax = "proto3"; import "{}"; message M {{ int32 n = 1; }}'
    assert parse(text.format("google/type/date.proto")).text
    with pytest.raises(SchemaSyntaxError, match=r'pip install "fluvial\[all\]"'):
        parse(text.format("confluent/meta.proto"))


def test_the_demo_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_demo.py").write_text("import numpy")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DemoError, match=r'needs numpy, which is not installed: pip install "fluvial\[demo\]"'):
        load("some_demo")


def test_programs_are_told_the_extra() -> None:
    with pytest.raises(MissingExtraError, match=r'dagster is not installed: pip install "fluvial\[dagster\]"'):
        import fluvial.orchestration  # noqa: F401
    from fluvial.quality import check_table, validate  # noqa: F401

    with pytest.raises(MissingExtraError, match=r'pip install "fluvial\[quality\]"'):
        validate(None, lambda gx: [])  # type: ignore[arg-type]
