"""Where a setting comes from, and what is said of a wrong one."""

from pathlib import Path
from typing import Any

import pytest

from fluvial.config import Settings, load_settings
from fluvial.errors import ConfigError
from fluvial.local.state import Platform


def load(directory: Path, environ: dict[str, str] | None = None, **flags: Any) -> Settings:
    return load_settings(environ=environ or {}, directory=directory, **flags)


def test_defaults(tmp_path: Path) -> None:
    assert load(tmp_path, data_dir=tmp_path / "none") == Settings(
        data_dir=tmp_path / "none", warehouse=str(tmp_path / "none" / "warehouse")
    )


def test_each_source_yields_to_the_one_before_it(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    Platform.planned(brokers=2, port=7000, registry_port=8000).save(data_dir)
    assert load(tmp_path, data_dir=data_dir).bootstrap_servers == "127.0.0.1:7000,127.0.0.1:7001"
    assert load(tmp_path, data_dir=data_dir).registry_url == "http://127.0.0.1:8000,http://127.0.0.1:8001"
    assert load(tmp_path, data_dir=data_dir).local

    (tmp_path / "fluvial.toml").write_text('bootstrap_servers = "file:1"\n')
    assert load(tmp_path, data_dir=data_dir).bootstrap_servers == "file:1"
    assert not load(tmp_path, data_dir=data_dir).local
    assert load(tmp_path, data_dir=data_dir).registry_url == "http://127.0.0.1:8000,http://127.0.0.1:8001"

    environ = {"FLUVIAL_BOOTSTRAP_SERVERS": "variable:1"}
    assert load(tmp_path, environ, data_dir=data_dir).bootstrap_servers == "variable:1"
    assert load(tmp_path, environ, data_dir=data_dir, bootstrap_servers="flag:1").bootstrap_servers == "flag:1"


def test_an_empty_variable_is_not_set(tmp_path: Path) -> None:
    assert load(tmp_path, {"FLUVIAL_BOOTSTRAP_SERVERS": ""}).bootstrap_servers == "127.0.0.1:9092"


def test_the_port_of_metrics_is_a_number_wherever_it_stands(tmp_path: Path) -> None:
    assert load(tmp_path).metrics_port is None
    (tmp_path / "fluvial.toml").write_text("metrics_port = 9100")
    assert load(tmp_path).metrics_port == 9100
    assert load(tmp_path, {"FLUVIAL_METRICS_PORT": "9200"}).metrics_port == 9200
    assert load(tmp_path, {"FLUVIAL_METRICS_PORT": "9200"}, metrics_port=9300).metrics_port == 9300


def test_spark_settings_may_be_nested_or_quoted(tmp_path: Path) -> None:
    (tmp_path / "fluvial.toml").write_text(
        '[spark]\nmaster = "local[3]"\nexecutor.memory = "4g"\n"spark.sql.ansi.enabled" = false\n'
    )
    found = load(tmp_path, spark_conf={"spark.executor.memory": "8g"})
    assert found.spark_master == "local[3]"
    assert found.spark_conf == {"spark.executor.memory": "8g", "spark.sql.ansi.enabled": "false"}
    assert load(tmp_path, {"FLUVIAL_SPARK_MASTER": "local[1]"}).spark_master == "local[1]"


def test_a_damaged_state_file_is_no_hindrance_to_work_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "platform.json").write_text("{")
    elsewhere = load(tmp_path, data_dir=tmp_path, bootstrap_servers="kafka:9092", registry_url="http://registry:8081")
    assert elsewhere.bootstrap_servers == "kafka:9092"
    with pytest.raises(ConfigError, match=r"platform\.json.*--data-dir"):
        load(tmp_path, data_dir=tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("bootstrap_servers = 'nowhere'", r"fluvial\.toml: bootstrap_servers: 'nowhere'.*host:port"),
        ("bootstrap_servers = 9092", r"fluvial\.toml: bootstrap_servers: 9092.*host:port"),
        ("bootstrap_servers = 'host:70000'", r"bootstrap_servers.*host:port"),
        ("registry_url = 'localhost:8081'", r"fluvial\.toml: registry_url.*http://"),
        ("registry_url = 'http://a:8081,b:8081'", r"registry_url.*several with commas"),
        ("bootstrap_server = 'a:1'", r"bootstrap_server: no such setting; did you mean bootstrap_servers\?"),
        ("colour = 'red'", r"colour: no such setting; it knows data_dir, "),
        ("spark = 'local'", r"fluvial\.toml: spark: write a table, \[spark\]"),
        ("[spark]\nmaster = ['local']", r"fluvial\.toml: spark\.master"),
        ("[spark]\nconf.x = [1]", r"fluvial\.toml: spark\.conf\.x"),
        ("project = 'my project'", r"fluvial\.toml: project: 'my project'.*module"),
        ("data_dir = ''", r"fluvial\.toml: data_dir"),
        ("data_dir = 5", r"fluvial\.toml: data_dir"),
        ("metrics_port = 70000", r"fluvial\.toml: metrics_port: 70000.*a port"),
        ("metrics_port = true", r"fluvial\.toml: metrics_port: True.*a port"),
        ("data_dir", r"fluvial\.toml: not valid TOML"),
    ],
)
def test_a_wrong_file_is_told_with_key_and_repair(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "fluvial.toml").write_text(text)
    with pytest.raises(ConfigError, match=says):
        load(tmp_path)


def test_a_wrong_flag_or_variable_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--bootstrap-server: 'x'"):
        load(tmp_path, bootstrap_servers="x")
    with pytest.raises(ConfigError, match="FLUVIAL_REGISTRY_URL: 'x'"):
        load(tmp_path, {"FLUVIAL_REGISTRY_URL": "x"})
