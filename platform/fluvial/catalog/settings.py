"""Which catalog the tables are registered in: `[catalog]` of `fluvial.toml`, FLUVIAL_CATALOG_TOKEN and the like."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fluvial.client_settings import table_of
from fluvial.errors import ConfigError
from fluvial.properties import FILE, Given, Properties, Property, checked

TABLE = "catalog"
ENVIRONMENT = "FLUVIAL_CATALOG_"
"""What the variables begin with: FLUVIAL_CATALOG_UNITY is `unity` of `[catalog]`."""
NAME_DEFAULT = "fluvial"

_UNITY = re.compile(r"https?://[^\s/,?#@]+(/[^\s,?#@]*)?")
_HIVE = re.compile(r"thrift://[^\s/,?#@]+:\d{1,5}(,thrift://[^\s/,?#@]+:\d{1,5})*")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,200}")
_TOKEN = re.compile(r"[!-~]{1,16384}")
_KINDS = frozenset({"unity", "hive"})

KNOWN: Mapping[str, Property] = {
    "unity": Property(
        check=lambda text: _UNITY.fullmatch(text) is not None,
        repair="write http://host:8080 or https://host, and the token as FLUVIAL_CATALOG_TOKEN",
        secret=True,  # somebody may have written a password into it
    ),
    "hive": Property(
        check=lambda text: _HIVE.fullmatch(text) is not None,
        repair="write thrift://host:9083, several with commas between",
    ),
    "name": Property(
        check=lambda text: _NAME.fullmatch(text) is not None, repair="write letters, digits, _ and - alone"
    ),
    "token": Property(
        check=lambda text: _TOKEN.fullmatch(text) is not None,
        repair="write the token alone, without blanks, or leave it to its variable",
        secret=True,
    ),
    "ssl.ca.location": FILE,
}


@dataclass(frozen=True, slots=True)
class CatalogSettings:
    """A catalog, by the properties that name it. It holds a secret: what it shows of itself is the address alone."""

    properties: Properties

    def __str__(self) -> str:
        return f"Unity Catalog at {self.unity}" if self.hive is None else f"the Hive metastore at {self.hive}"

    @property
    def unity(self) -> str | None:
        """The address of Unity Catalog, None where it is a Hive metastore."""
        found = self.properties.get("unity")
        return None if found is None else found.rstrip("/")

    @property
    def hive(self) -> str | None:
        """The address of a Hive metastore, None where it is Unity Catalog."""
        return self.properties.get("hive")

    @property
    def name(self) -> str | None:
        """The catalog within Unity Catalog; what the databases of a Hive metastore begin with."""
        return self.properties.get("name")

    @property
    def token(self) -> str | None:
        """Who asks."""
        return self.properties.get("token")


def catalog_settings(path: Path, read: Mapping[str, Any], environ: Mapping[str, str]) -> CatalogSettings | None:
    """
    Return the catalog that `read`, which is what `path` holds, and the variables name; None where they name none.

    A variable speaks before the file. Raises ConfigError.
    """
    variables = {
        variable.removeprefix(ENVIRONMENT).lower().replace("_", "."): Given(value, variable)
        for variable, value in environ.items()
        if variable.startswith(ENVIRONMENT) and value
    }
    of_file = {name: Given(value, f"{path}: {TABLE}.{name}") for name, value in table_of(path, read, TABLE)}
    if not _KINDS.isdisjoint(variables):
        # Another catalog than the file's.
        of_file = {name: each for name, each in of_file.items() if name not in _KINDS}
    found = checked({**of_file, **variables}, KNOWN, {})
    named = [found[kind] for kind in sorted(_KINDS & found.keys())]
    if len(named) > 1:
        raise ConfigError(f"{named[0].where} and {named[1].where}: leave one of them out")
    if not named and of_file:
        raise ConfigError(f"{path}: {TABLE}: names no catalog; write unity or hive")
    if "hive" in found and "token" in found:
        raise ConfigError(f"{found['token'].where}: a Hive metastore takes no token; leave it out")
    return CatalogSettings(Properties.of(found)) if named else None


def variables_of(catalog: CatalogSettings | None) -> dict[str, str]:
    """Return the variables by which a process that is started from here finds the same catalog."""
    pairs = () if catalog is None else catalog.properties.pairs
    return {f"{ENVIRONMENT}{name.upper().replace('.', '_')}": value for name, value in pairs}
