"""Profiles of `fluvial.toml`."""

import json
from pathlib import Path

import pytest

from fluvial.cli.main import execute
from fluvial.config import Settings, environment_of, load_settings
from fluvial.errors import ConfigError
from fluvial.profiles import VARIABLE, with_profile

FILE = """
bootstrap_servers = "base:9092"
warehouse = "base"
project = "shop"

[spark]
master = "local[2]"
executor.memory = "1g"
executor.cores = 2

[kafka]
client.id = "base"
session.timeout.ms = 5000

[profiles.prod]
bootstrap_servers = "prod:9092"
warehouse = "s3a://lake"
kafka.client.id = "prod"

[profiles.prod.spark]
remote = "sc://spark:15002"
"spark.executor.memory" = "8g"

[profiles.staging]
project = "shop_staging"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "fluvial.toml").write_text(FILE)
    return tmp_path


def load(folder: Path, profile: str | None = None, **environ: str) -> Settings:
    return load_settings(environ=environ, directory=folder, profile=profile)


def test_a_profile_overrides_the_settings_that_it_names(folder: Path) -> None:
    base, prod = load(folder), load(folder, "prod")
    assert (base.profile, base.bootstrap_servers, base.spark_master) == (None, "base:9092", "local[2]")
    assert (prod.profile, prod.bootstrap_servers, prod.warehouse) == ("prod", "prod:9092", "s3a://lake")
    assert prod.project == "shop"
    assert prod.spark_master == "sc://spark:15002"
    assert prod.spark_conf == {"spark.executor.memory": "8g", "spark.executor.cores": "2"}
    assert dict(prod.kafka_properties.pairs)["client.id"] == "prod"
    assert load(folder, "staging").project == "shop_staging"
    assert load(folder, "staging").warehouse == "base"


def test_the_variable_chooses_and_the_flag_is_before_it(folder: Path) -> None:
    assert load(folder, FLUVIAL_PROFILE="prod").bootstrap_servers == "prod:9092"
    assert load(folder, "staging", FLUVIAL_PROFILE="prod").profile == "staging"
    assert load(folder, FLUVIAL_PROFILE="prod", FLUVIAL_WAREHOUSE="mine").warehouse == "mine"
    assert environment_of(load(folder, "prod"))[VARIABLE] == "prod"
    assert VARIABLE not in environment_of(load(folder))


@pytest.mark.parametrize(
    ("text", "profile", "says"),
    [
        (FILE, "prd", "fluvial.toml: no profile 'prd'; did you mean prod?"),
        (FILE, "x", "no profile 'x'; it has prod, staging"),
        ("", "prod", r"no profile 'prod'; write \[profiles.prod\]"),
        ("[profiles]\nprod = 1\n", None, r"profiles: write a table for each profile, as in \[profiles.prod\]"),
        ("[profiles.prod]\nwarehose = 'x'\n", "prod", "warehose: no such setting; did you mean warehouse?"),
    ],
)
def test_a_wrong_profile_is_told(tmp_path: Path, text: str, profile: str | None, says: str) -> None:
    (tmp_path / "fluvial.toml").write_text(text)
    with pytest.raises(ConfigError, match=says):
        load(tmp_path, profile)


def test_without_a_file_there_is_no_profile(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no profile 'prod'"):
        load(tmp_path, "prod")


def test_keys_that_say_the_same_are_overridden_together() -> None:
    def merged(base: dict[str, object], profile: dict[str, object]) -> dict[str, object]:
        return with_profile(Path("f"), {**base, "profiles": {"p": profile}}, "p")

    assert merged({"spark_master": "local"}, {"spark": {"remote": "sc://x"}}) == {"spark": {"remote": "sc://x"}}
    assert merged({"command_config": "a"}, {"kafka": {"a": {"b": 1}}}) == {"kafka": {"a.b": 1}}
    assert merged({"kafka": {"a": 1}, "project": "x"}, {"command_config": "a"}) == {
        "project": "x",
        "command_config": "a",
    }
    assert merged({"registry_url": "u"}, {"registry": {"url": "v"}}) == {"registry": {"url": "v"}}


def test_commands_take_the_profile(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setattr("fluvial.local.status.status_of", lambda data_dir: Found())
    assert execute(["status", "--profile", "prod", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["profile"] == "prod"
    monkeypatch.setenv(VARIABLE, "")
    assert execute(["--profile", "staging", "status"]) == 0
    assert capsys.readouterr().out.startswith("profile   staging\n")
    assert execute(["table", "list", "--profile", "prood"]) == 1
    assert "no profile 'prood'; did you mean prod?" in capsys.readouterr().err


class Found:
    """The status of a platform without nodes."""

    class platform:  # noqa: N801
        bootstrap_servers = registry_url = "-"

    nodes = ()

    def as_json(self) -> dict[str, object]:
        return {"nodes": []}
