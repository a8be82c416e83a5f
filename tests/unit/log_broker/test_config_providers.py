"""References from a settings file to secrets elsewhere, and that no secret comes out of a node by any way."""

import subprocess
import sys
from pathlib import Path

import pytest

from log_broker.config.properties import read_settings
from log_broker.config.providers import resolved
from log_broker.errors import BrokerError

SECRET = "Tr0ub4dor-and-3"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_each_provider_finds_its_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_PASSWORD", "from the environment")
    written(tmp_path / "secrets.properties", "key.password=from a file\n")
    written(tmp_path / "node.key", "from a directory\n")
    settings = written(
        tmp_path / "server.properties",
        "config.providers=env,file,directory\n"
        "config.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider\n"
        'sasl.jaas.config=Module required username="node" password="${env:NODE_PASSWORD}";\n'
        f"ssl.key.password=${{file:{tmp_path}/secrets.properties:key.password}}\n"
        f"ssl.keystore.key=${{directory:{tmp_path}:node.key}}\n",
    )
    assert read_settings(settings) == {
        "sasl.jaas.config": 'Module required username="node" password="from the environment";',
        "ssl.key.password": "from a file",
        "ssl.keystore.key": "from a directory",
    }


def test_what_no_provider_is_named_for_stays_as_it_is() -> None:
    given = {"config.providers": "env", "a": "${file:/x:y} $1 ${} ${env:}", "b": "${env:V}${env:V}"}
    # A value is not looked at again, so that what stands in a secret asks for nothing.
    assert resolved(given, dict, {"V": "${env:V}"}) == {"a": given["a"], "b": "${env:V}${env:V}"}
    assert resolved({"a": "${env:V}"}, dict, {"V": SECRET}) == {"a": "${env:V}"}


@pytest.mark.parametrize("reference", ["${env:NONE}", "${file:/nowhere:a}", "${directory:/tmp:../etc/passwd}"])
def test_a_reference_that_leads_nowhere_is_told_by_its_setting(reference: str) -> None:
    given = {"config.providers": "env,file,directory", "ssl.key.password": reference}

    def read(path: Path) -> dict[str, str]:
        raise FileNotFoundError

    with pytest.raises(BrokerError, match=r"ssl\.key\.password"):
        resolved(given, read, {})
    with pytest.raises(BrokerError, match="there are directory, env, file"):
        resolved({"config.providers": "vault"}, read, {})


@pytest.mark.parametrize("module", ["log_broker", "fluvial.node"])
@pytest.mark.parametrize("wrong", ["sasl.enabled.mechanisms=GSSAPI", "ssl.keystore.location=/nowhere.pem", "no.such=1"])
def test_no_secret_is_in_what_a_node_says_that_cannot_start(tmp_path: Path, module: str, wrong: str) -> None:
    text = (
        "security.inter.broker.protocol=SASL_SSL\n"
        f'sasl.jaas.config=Module required username="node" password="{SECRET}" user_ada="{SECRET}";\n'
        f"ssl.key.password={SECRET}\nfluvial.sign.in.secret={SECRET}\n{wrong}\n"
    )
    config = written(tmp_path / "server.properties", text)
    config.chmod(0o644)
    words = [sys.executable, "-m", module, "--data-dir", str(tmp_path / "data"), "--port", "0", "--config", str(config)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert SECRET not in done.stdout + done.stderr
    given = subprocess.run(
        [*words[:-2], "--set", f"ssl.key.password={SECRET}"], capture_output=True, text=True, timeout=120, check=False
    )
    assert given.returncode != 0
    assert SECRET not in given.stdout + given.stderr
