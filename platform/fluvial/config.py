"""
Which platform and which tables a command works on.

A setting comes from the first of these that has it: a flag, `FLUVIAL_<NAME>` in the environment, the chosen profile of
`fluvial.toml` in the working directory, the rest of that file, the local platform that lives in the data directory, the
default. Nothing is read at import.
What the clients of Kafka and of the registry are told beside an address is gathered in `client_settings`.
"""

import os
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fluvial.catalog import settings as catalogs
from fluvial.catalog.settings import CatalogSettings, catalog_settings
from fluvial.client_settings import TABLES, ClientSettings, client_settings, table_of, variables_of
from fluvial.errors import ConfigError
from fluvial.kafka import KafkaCluster
from fluvial.local.state import PORT_DEFAULT, REGISTRY_PORT_DEFAULT, Platform, client_properties
from fluvial.profiles import VARIABLE as PROFILE_VARIABLE
from fluvial.profiles import with_profile
from fluvial.properties import NO_PROPERTIES, Properties
from fluvial.registry.endpoint import RegistryEndpoint, without_users

FILE = "fluvial.toml"
DATA_DIR = ".fluvial"

_PORT_MAX = 65_535
_URL = re.compile(r"https?://[^\s/,]+[^\s,]*")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Settings:
    """What `load_settings` found. `warehouse` is a folder or a URI; `project` is the module of the declarations."""

    data_dir: Path = Path(DATA_DIR)
    bootstrap_servers: str = f"127.0.0.1:{PORT_DEFAULT}"
    registry_url: str = f"http://127.0.0.1:{REGISTRY_PORT_DEFAULT}"
    warehouse: str = f"{DATA_DIR}/warehouse"
    spark_master: str = "local[*]"
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    project: str = "pipelines"
    metadata_max_age_ms: int = 300_000
    """By when producers know of partitions that a topic was given: the most that they have as `metadata.max.age.ms`."""
    metrics_port: int | None = None
    """Where `fluvial up` has its first broker serve metrics, the others from there on; None for none."""
    profile: str | None = None
    """The profile of `fluvial.toml` that was chosen."""
    local: bool = True
    """Whether the cluster is the local platform of `data_dir`, because nothing named another."""
    kafka_properties: Properties = NO_PROPERTIES
    registry_properties: Properties = NO_PROPERTIES
    catalog: CatalogSettings | None = None
    """Where the tables are registered for other engines; None for nowhere."""

    @property
    def cluster(self) -> KafkaCluster:
        """The Kafka cluster, with all that its clients are to be told; raises ConfigError when that cannot be it."""
        found = KafkaCluster(self.bootstrap_servers, self.kafka_properties)
        if self.local and found.protocol != "PLAINTEXT" and client_properties(self.data_dir) is None:
            raise ConfigError(
                f"{self.kafka_properties.where('security.protocol')}: the local platform is in plain text, for it "
                "was not started with --secure; name the cluster that is meant with bootstrap_servers, "
                "FLUVIAL_BOOTSTRAP_SERVERS or --bootstrap-server"
            )
        return found

    @property
    def registry(self) -> RegistryEndpoint:
        """The schema registry, with all that its clients are to be told."""
        return RegistryEndpoint(self.registry_url, self.registry_properties)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """One setting: how its text is checked, what to write when the check fails, and whether a bare number will do."""

    check: Callable[[str], bool]
    repair: str
    number: bool = False


def _is_servers(text: str) -> bool:
    return all(_is_address(server.strip()) for server in text.split(","))


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and not re.search(r"[\s/]", host) and port.isdecimal() and 0 < int(port) <= _PORT_MAX


# Everything but the tables. A key is the name of the flag, the variable and the key in the file.
_SETTINGS: Mapping[str, _Setting] = {
    "data_dir": _Setting(check=bool, repair="write the path of a folder"),
    "bootstrap_servers": _Setting(check=_is_servers, repair="write host:port, several with commas between"),
    "registry_url": _Setting(
        check=lambda text: all(_URL.fullmatch(each.strip()) for each in text.split(",")),
        repair="write http://host:port or https://host, several with commas between",
    ),
    "command_config": _Setting(check=bool, repair="write the path of a file of client properties"),
    "warehouse": _Setting(check=bool, repair="write a folder or a URI"),
    "spark_master": _Setting(
        check=bool, repair="write local[*], spark://host:7077, sc://host:15002 or another master that Spark knows"
    ),
    "metadata_max_age_ms": _Setting(
        check=lambda text: text.isdecimal(), repair="write a number of milliseconds", number=True
    ),
    "metrics_port": _Setting(
        check=lambda text: text.isdecimal() and 0 < int(text) <= _PORT_MAX,
        repair=f"write a port, 1 to {_PORT_MAX}",
        number=True,
    ),
    "project": _Setting(
        check=lambda text: _MODULE.fullmatch(text) is not None, repair="write the name of a Python module"
    ),
}

_FLAGS = {"bootstrap_servers": "--bootstrap-server"}
"""Flags that are not spelt like their setting."""


def load_settings(*, environ: Mapping[str, str] | None = None, directory: Path | None = None, **flags: Any) -> Settings:
    """
    Find the value of every setting; a flag that is None or an empty mapping was not given.

    `environ` and `directory` stand in for the process's own; `profile`, a flag as well, is one of the file's profiles.
    Raises ConfigError naming where the wrong value stands.
    """
    environ = os.environ if environ is None else environ
    path = (directory or Path()) / FILE
    profile = flags.pop("profile", None) or environ.get(PROFILE_VARIABLE) or None
    unknown = flags.keys() - _SETTINGS.keys() - {"spark_conf"}
    assert not unknown, f"no such setting: {unknown}"
    found: dict[str, str] = {}
    from_file = _read_file(path, profile)
    spark_conf = _spark_table(path, from_file)
    for name, setting in _SETTINGS.items():
        candidates = (
            (_FLAGS.get(name, f"--{name.replace('_', '-')}"), flags.get(name)),
            (f"FLUVIAL_{name.upper()}", environ.get(f"FLUVIAL_{name.upper()}") or None),
            (f"{path}: {name}", from_file.get(name)),
            (f"{path}: spark.master", spark_conf.get("spark.master") if name == "spark_master" else None),
            (f"{path}: spark.remote", spark_conf.get("spark.remote") if name == "spark_master" else None),
        )
        given = next(((where, value) for where, value in candidates if value is not None), None)
        if given is not None:
            found[name] = _checked(*given, setting)
    spark_conf.pop("spark.master", None)
    spark_conf.pop("spark.remote", None)
    spark_conf.update({key: str(value) for key, value in (flags.get("spark_conf") or {}).items()})
    file = found.pop("command_config", None)
    if file is None and "bootstrap_servers" not in found:
        # The local platform's own, if it is secured.
        own = client_properties(Path(found.get("data_dir", DATA_DIR)).expanduser())
        file = None if own is None else str(own)
    by_flag = flags.get("command_config") is not None
    clients = client_settings(
        path,
        from_file,
        environ,
        flag_file=Path(file) if file is not None and by_flag else None,
        other_file=Path(file) if file is not None and not by_flag else None,
    )
    for name, among_properties in (("bootstrap_servers", clients.servers), ("registry_url", clients.url)):
        # The file that a flag names speaks before everything but the setting's own flag.
        if among_properties is not None and (name not in found or (by_flag and flags.get(name) is None)):
            found[name] = _checked(among_properties.where, among_properties.value, _SETTINGS[name])
    catalog = catalog_settings(path, from_file, environ)
    return replace(_settings(found, spark_conf, clients), profile=profile, catalog=catalog)


def _settings(found: dict[str, str], spark_conf: Mapping[str, str], clients: ClientSettings) -> Settings:
    data_dir = Path(found.pop("data_dir", DATA_DIR)).expanduser()
    local = "bootstrap_servers" not in found
    numbers = {name: int(found.pop(name)) for name, setting in _SETTINGS.items() if setting.number and name in found}
    values: dict[str, Any] = {"warehouse": str(data_dir / "warehouse")}
    # A platform that is not needed is not read: a damaged state file must not stop work on another cluster.
    if not {"bootstrap_servers", "registry_url"} <= found.keys() and (platform := Platform.load(data_dir)) is not None:
        values["bootstrap_servers"] = platform.bootstrap_servers
        values["registry_url"] = platform.registry_url
    registry_properties = clients.registry
    if "registry_url" in found:
        found["registry_url"], registry_properties = without_users(found["registry_url"], registry_properties)
    return Settings(
        data_dir=data_dir,
        spark_conf=dict(spark_conf),
        local=local,
        kafka_properties=clients.kafka,
        registry_properties=registry_properties,
        **(values | found | numbers),
    )


def environment_of(settings: Settings) -> dict[str, str]:
    """
    Return the variables by which a process that is started from here finds the same settings, but for Spark's.

    Secrets are among them: they go to that process and into no text.
    """
    values = {each.name: getattr(settings, each.name) for each in fields(settings)}
    chosen = {f"FLUVIAL_{name.upper()}": str(value) for name, value in values.items() if isinstance(value, str | Path)}
    chosen["FLUVIAL_METADATA_MAX_AGE_MS"] = str(settings.metadata_max_age_ms)
    clients = variables_of(settings.kafka_properties, settings.registry_properties)
    return {**chosen, **clients, **catalogs.variables_of(settings.catalog)}


def _checked(where: str, value: object, setting: _Setting) -> str:
    is_text = isinstance(value, str | Path) or (setting.number and type(value) is int)
    text = str(value).strip() if is_text else ""
    if not setting.check(text):
        raise ConfigError(f"{where}: {value!r} will not do; {setting.repair}")
    return text


def _read_file(path: Path, profile: str | None) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            read = with_profile(path, tomllib.load(file), profile)
    except FileNotFoundError:
        return with_profile(path, {}, profile)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    known = [*_SETTINGS, *TABLES, "spark", catalogs.TABLE]
    for key in read:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            meant = f"did you mean {near[0]}?" if near else f"it knows {', '.join(known)}"
            raise ConfigError(f"{path}: {key}: no such setting; {meant}")
    if "command_config" in read and not read.keys().isdisjoint(TABLES):
        raise ConfigError(f"{path}: command_config: replaces [kafka] and [registry]; remove it or them")
    return read


def _spark_table(path: Path, read: Mapping[str, Any]) -> dict[str, str]:
    """Return `[spark]` as Spark names its settings; `executor.memory` and `"spark.executor.memory"` are the same."""
    found = table_of(path, read, "spark")
    conf = {key if key.startswith("spark.") else f"spark.{key}": value for key, value in found}
    if {"spark.master", "spark.remote"} <= conf.keys():
        raise ConfigError(f"{path}: spark: both master and remote are named; leave out one of them")
    return conf


def data_dir_words(data_dir: Path) -> str:
    """Return what a command that is shown to the user needs to mean this platform: nothing for the default one."""
    return "" if data_dir == Path(DATA_DIR) else f" --data-dir {shlex.quote(str(data_dir))}"
