"""
Which properties the clients of Kafka and of the registry get: from a properties file, variables and `fluvial.toml`.

A variable is named as its property, FLUVIAL_KAFKA_SASL_PASSWORD for `sasl.password`: no secret need stand in a file.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fluvial.errors import ConfigError
from fluvial.kafka import client_properties as kafka
from fluvial.kafka.java import without_java_names
from fluvial.properties import Given, Properties, flat, read_properties
from fluvial.registry import endpoint as registry

TABLES = ("kafka", "registry")
_URL = "url"
# Settings of their own, which begin like the variables of properties.
_OTHER_VARIABLES = frozenset({"FLUVIAL_REGISTRY_URL"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """What was found. `servers` and `url` stood among the properties, as they do in the files of Kafka's own tools."""

    kafka: Properties
    registry: Properties
    servers: Given | None
    url: Given | None


@dataclass(frozen=True, slots=True)
class _Source:
    """What one source says, under librdkafka's names; `kafka` and `registry` are taken apart already."""

    kafka: Mapping[str, Given]
    registry: Mapping[str, Given]


def _file(path: Path) -> _Source:
    read = read_properties(path)
    registrys = {name: each for name, each in read.items() if registry.is_registrys(name)}
    return _Source(
        {name: each for name, each in read.items() if name not in registrys},
        {name.removeprefix(registry.PREFIX): each for name, each in registrys.items()},
    )


def kafka_properties_of(path: Path) -> Properties:
    """Return what a properties file says of Kafka, without what it says of a registry; raises ConfigError."""
    return kafka.kafka_properties({kafka.ALIASES.get(name, name): each for name, each in _file(path).kafka.items()})


def _variables(environ: Mapping[str, str]) -> _Source:
    def of(prefix: str) -> dict[str, Given]:
        return {
            variable.removeprefix(prefix).lower().replace("_", "."): Given(value, variable)
            for variable, value in environ.items()
            if variable.startswith(prefix) and value and variable not in _OTHER_VARIABLES
        }

    return _Source(of(kafka.ENVIRONMENT), of(registry.ENVIRONMENT))


def _tables(path: Path, read: Mapping[str, Any]) -> _Source:
    def of(table: str) -> dict[str, Given]:
        return {name: Given(value, f"{path}: {table}.{name}") for name, value in table_of(path, read, table)}

    return _Source(*(of(table) for table in TABLES))


def _merged(sources: Iterable[Mapping[str, Given]], aliases: Mapping[str, str]) -> dict[str, Given]:
    """Put together what several sources say; where two say something of one thing, the first counts."""
    merged: dict[str, Given] = {}
    for source in sources:
        for name, each in without_java_names(source).items():
            merged.setdefault(aliases.get(name, name), each)
    return merged


def client_settings(
    toml: Path,
    read: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    flag_file: Path | None = None,
    other_file: Path | None = None,
) -> ClientSettings:
    """
    Gather and check the properties; `read` is what `toml` holds.

    First comes the properties file that a flag names, then the variables, then `other_file` or the tables of `toml`: a
    properties file speaks for the cluster as a whole, so that beside one the tables are not looked at. Raises
    ConfigError.
    """
    sources = [_variables(environ)]
    if flag_file is not None:
        sources.insert(0, _file(flag_file))
    elif other_file is not None:
        sources.append(_file(other_file))
    else:
        sources.append(_tables(toml, read))
    for_kafka = _merged((each.kafka for each in sources), kafka.ALIASES)
    for_registry = _merged((each.registry for each in sources), registry.ALIASES)
    servers, url = for_kafka.pop(kafka.SERVERS, None), for_registry.pop(_URL, None)
    return ClientSettings(
        kafka=kafka.kafka_properties(for_kafka),
        registry=registry.registry_properties(for_registry),
        servers=servers,
        url=url,
    )


def variables_of(kafka_properties: Properties, registry_properties: Properties) -> dict[str, str]:
    """Return the variables by which a process that is started from here finds the same properties."""
    pairs = (
        (prefix, each)
        for prefix, properties in ((kafka.ENVIRONMENT, kafka_properties), (registry.ENVIRONMENT, registry_properties))
        for each in properties.pairs
    )
    return {f"{prefix}{name.upper().replace('.', '_')}": value for prefix, (name, value) in pairs}


def table_of(path: Path, read: Mapping[str, Any], name: str) -> Iterator[tuple[str, str]]:
    """Yield what a table of `fluvial.toml` holds, as text; `a.b = 1` and `"a.b" = 1` are one. Raises ConfigError."""
    table = read.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: {name}: write a table, [{name}] and a line for each property")
    for key, value in flat(table):
        if not isinstance(value, str | int | float):
            raise ConfigError(f"{path}: {name}.{key}: write a string, a number, true or false")
        yield key, str(value).lower() if isinstance(value, bool) else str(value)
