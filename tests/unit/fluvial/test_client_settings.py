"""Where the properties of clients come from: a properties file, variables, tables of `fluvial.toml`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fluvial.config import Settings, environment_of, load_settings
from fluvial.errors import ConfigError

TOML = """
bootstrap_servers = "file:1"

[kafka]
security.protocol = "SASL_SSL"
"sasl.mechanism" = "PLAIN"
sasl.username = "from-file"
sasl.password = "file-secret"

[registry]
url = "https://file"
basic.auth.user.info = "me:registry-secret"
"""
PROPERTIES = """
bootstrap.servers=properties:1
security.protocol=SASL_SSL
sasl.mechanisms=SCRAM-SHA-512
sasl.username=from-properties
schema.registry.url=https://properties
basic.auth.credentials.source=USER_INFO
basic.auth.user.info=key:properties-secret
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "fluvial.toml").write_text(TOML)
    (tmp_path / "client.properties").write_text(PROPERTIES)
    return tmp_path


def load(directory: Path, environ: dict[str, str] | None = None, **flags: Any) -> Settings:
    return load_settings(environ=environ or {}, directory=directory, **flags)


def said(settings: Settings) -> tuple[str, str | None, str | None, str | None]:
    found = settings.cluster.properties
    return settings.bootstrap_servers, *(found.get(f"sasl.{name}") for name in ("mechanism", "username", "password"))


def test_the_tables_of_the_file(folder: Path) -> None:
    settings = load(folder)
    assert said(settings) == ("file:1", "PLAIN", "from-file", "file-secret")
    assert settings.registry.confluent() == {"url": "https://file", "basic.auth.user.info": "me:registry-secret"}


def test_a_variable_speaks_before_the_file(folder: Path) -> None:
    environ = {"FLUVIAL_KAFKA_SASL_PASSWORD": "variable", "FLUVIAL_REGISTRY_USER_INFO": "other:variable"}
    settings = load(folder, environ)
    assert said(settings) == ("file:1", "PLAIN", "from-file", "variable")
    assert settings.registry.properties.get("basic.auth.user.info") == "other:variable"
    bearer = {"FLUVIAL_REGISTRY_BEARER_AUTH_TOKEN": "t", "FLUVIAL_REGISTRY_URL": "https://variable"}
    with pytest.raises(ConfigError, match=r"FLUVIAL_REGISTRY_BEARER_AUTH_TOKEN: basic\.auth\.user\.info is given"):
        load(folder, bearer)
    token = load(folder / "none", bearer).registry
    assert token.confluent() == {
        "url": "https://variable",
        "bearer.auth.token": "t",
        "bearer.auth.credentials.source": "STATIC_TOKEN",
    }


def test_a_properties_file_stands_for_the_tables(folder: Path) -> None:
    file = folder / "client.properties"
    by_flag = load(
        folder, {"FLUVIAL_KAFKA_SASL_PASSWORD": "v", "FLUVIAL_BOOTSTRAP_SERVERS": "v:1"}, command_config=file
    )
    assert said(by_flag) == ("properties:1", "SCRAM-SHA-512", "from-properties", "v")
    assert by_flag.registry.confluent() == {
        "url": "https://properties",
        "basic.auth.user.info": "key:properties-secret",
    }
    assert load(folder, command_config=file, bootstrap_servers="flag:1").bootstrap_servers == "flag:1"
    by_variable = load(folder, {"FLUVIAL_COMMAND_CONFIG": str(file), "FLUVIAL_KAFKA_SASL_USERNAME": "v"})
    assert said(by_variable) == ("file:1", "SCRAM-SHA-512", "v", None)
    assert not by_variable.local


def test_a_cluster_may_be_named_among_the_properties(tmp_path: Path) -> None:
    (tmp_path / "fluvial.toml").write_text("[kafka]\nbootstrap.servers = 'a:1'\n[registry]\nurl = 'http://r'")
    settings = load(tmp_path)
    assert (settings.bootstrap_servers, settings.registry_url, settings.local) == ("a:1", "http://r", False)
    (tmp_path / "fluvial.toml").write_text("[kafka]\nbootstrap.servers = 'nowhere'")
    with pytest.raises(ConfigError, match=r"fluvial\.toml: kafka\.bootstrap\.servers: 'nowhere'.*host:port"):
        load(tmp_path)


def test_a_process_that_is_started_from_here_finds_the_same(folder: Path) -> None:
    here = load(folder, {"FLUVIAL_KAFKA_SASL_PASSWORD": "variable"}, command_config=folder / "client.properties")
    there = load(folder, environment_of(here))
    assert there == replace(here, metrics_port=None)


def test_a_password_in_a_url_is_taken_out_of_sight(tmp_path: Path) -> None:
    settings = load(tmp_path, registry_url="https://me:hu%40sh@one:8081,https://two:8081")
    assert settings.registry_url == "https://one:8081,https://two:8081"
    assert settings.registry.properties.get("basic.auth.user.info") == "me:hu@sh"


def test_no_secret_is_shown(folder: Path) -> None:
    shown = repr(load(folder)) + str(load(folder).cluster) + repr(load(folder).registry)
    assert "secret" not in shown


def test_the_local_platform_is_not_asked_by_tls(tmp_path: Path) -> None:
    (tmp_path / "fluvial.toml").write_text("[kafka]\nsecurity.protocol = 'SSL'")
    settings = load(tmp_path)
    with pytest.raises(ConfigError, match=r"fluvial\.toml: kafka\.security\.protocol.*--bootstrap-server"):
        _ = settings.cluster
    assert load(tmp_path, bootstrap_servers="a:1").cluster.protocol == "SSL"


def test_a_variable_of_another_cluster_is_no_hindrance(tmp_path: Path) -> None:
    settings = load(tmp_path, {"FLUVIAL_KAFKA_SASL_PASSWORD": "x"}, bootstrap_servers="a:1")
    assert "kafka.sasl.jaas.config" not in settings.cluster.spark_options()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "[kafka]\nsasl.user = 'x'",
            r"fluvial\.toml: kafka\.sasl\.user: no such property; did you mean sasl\.username",
        ),
        ("[kafka]\nsecurity.protocol = 1", r"fluvial\.toml: kafka\.security\.protocol: '1' will not do"),
        ("[kafka]\nssl.ca.location = ['x']", r"fluvial\.toml: kafka\.ssl\.ca\.location: write a string"),
        ("kafka = 'x'", r"fluvial\.toml: kafka: write a table, \[kafka\]"),
        (
            "[registry]\nbasic.auth.user.inf = 'x'",
            r"registry\.basic\.auth\.user\.inf: .*did you mean basic\.auth\.user\.info",
        ),
        ("[registry]\nbasic.auth.user.info = 'x'", r"registry\.basic\.auth\.user\.info: this value.*NAME:PASSWORD"),
        ("[registry]\nssl.key.location = 'x'", r"registry\.ssl\.key\.location: needs its certificate"),
        ("command_config = 'x'\n[kafka]\nsecurity.protocol = 'SSL'", r"command_config: replaces \[kafka\]"),
        ("command_config = 'nowhere'", r"nowhere: cannot be read: No such file"),
    ],
)
def test_a_wrong_file_is_told_with_key_and_repair(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "fluvial.toml").write_text(text)
    with pytest.raises(ConfigError, match=says):
        load(tmp_path)


def test_a_wrong_line_or_variable_is_named(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SSL\nssl.truststore.location=x.jks\n")
    with pytest.raises(ConfigError, match=r"client\.properties: ssl\.truststore\.location: .*PEM"):
        load(tmp_path, command_config=file)
    with pytest.raises(ConfigError, match=r"FLUVIAL_KAFKA_SASL_PASWORD: no such property; did you mean sasl\.password"):
        load(tmp_path, {"FLUVIAL_KAFKA_SASL_PASWORD": "hush"})
