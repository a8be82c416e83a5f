"""
The profiles of `fluvial.toml`: `[profiles.prod]` overrides the file's settings where prod is chosen.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fluvial.errors import ConfigError
from fluvial.properties import flat

VARIABLE = "FLUVIAL_PROFILE"
TABLE = "profiles"

# Keys that say the same thing: a profile that has one of them overrides the others too.
_SAME = (
    {"spark_master", "spark.master", "spark.remote", "spark.spark.master", "spark.spark.remote"},
    {"bootstrap_servers", "kafka.bootstrap.servers"},
    {"registry_url", "registry.url"},
    {"catalog.unity", "catalog.hive"},
)
_CLIENTS = ("kafka.", "registry.")


def with_profile(path: Path, document: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """
    Return what the file at `path` says under a profile, or without one: the document, with the profile's keys over it.

    Tables are merged key by key. Raises ConfigError for a profile that the file does not have.
    """
    base = {key: value for key, value in document.items() if key != TABLE}
    profiles = document.get(TABLE, {})
    if not isinstance(profiles, dict) or not all(isinstance(each, dict) for each in profiles.values()):
        raise ConfigError(f"{path}: {TABLE}: write a table for each profile, as in [{TABLE}.prod]")
    if name is None:
        return base
    if name not in profiles:
        near = get_close_matches(name, profiles, n=1)
        known = f"it has {', '.join(profiles)}" if profiles else f"write [{TABLE}.{name}]"
        raise ConfigError(f"{path}: no profile {name!r}; {f'did you mean {near[0]}?' if near else known}")
    over = dict(flat(profiles[name]))
    kept = {key: value for key, value in flat(base) if not _is_overridden(key, over)}
    merged: dict[str, Any] = {}
    for key, value in {**kept, **over}.items():
        table, dot, inner = key.partition(".")
        if dot:
            merged.setdefault(table, {})[inner] = value
        else:
            merged[key] = value
    return merged


def _is_overridden(key: str, over: Mapping[str, Any]) -> bool:
    if key == "command_config":
        return any(each.startswith(_CLIENTS) for each in over)
    if key.startswith(_CLIENTS) and "command_config" in over:
        return True
    return any(key in same and not same.isdisjoint(over) for same in _SAME)
