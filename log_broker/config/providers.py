"""
Secrets that stand elsewhere than in a settings file, as Kafka's config providers find them (KIP-297, KIP-421).

    config.providers=env,file,directory
    sasl.jaas.config=… password="${env:NODE_PASSWORD}";
    ssl.key.password=${file:/run/secrets/broker.properties:key.password}
    ssl.keystore.key=${directory:/run/secrets:node.key}

Only the providers that `config.providers` names are asked, and each value is replaced once.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from log_broker.errors import BrokerError, ErrorCode

SETTING = "config.providers"
_REFERENCE = re.compile(r"\$\{(\w+):(?:([^}]*):)?([^}:]+)\}")

Read = Callable[[Path], Mapping[str, str]]


def resolved(settings: Mapping[str, str], read: Read, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """
    Return settings with what their references stand for; `read` reads a file of `name=value` lines.

    Raises BrokerError(INVALID_CONFIG) that names the setting and what it asks for, never a value.
    """
    environ = os.environ if environ is None else environ
    named = {each.strip() for each in settings.get(SETTING, "").split(",") if each.strip()}
    unknown = named - _PROVIDERS.keys()
    if unknown:
        raise _invalid(SETTING, f"{', '.join(sorted(unknown))}: there are {', '.join(sorted(_PROVIDERS))}")
    kept = {name: text for name, text in settings.items() if name != SETTING and not name.startswith(f"{SETTING}.")}

    def value_of(setting: str, found: "re.Match[str]") -> str:
        provider, place, key = found[1], found[2] or "", found[3]
        if provider not in named:
            return found[0]
        try:
            return _PROVIDERS[provider](place, key, read, environ)
        except (KeyError, OSError, UnicodeDecodeError):
            raise _invalid(setting, f"{found[0]} is not there, or cannot be read") from None

    return {
        name: _REFERENCE.sub(lambda found, name=name: value_of(name, found), text)  # type: ignore[misc]
        for name, text in kept.items()
    }


def _env(place: str, key: str, read: Read, environ: Mapping[str, str]) -> str:
    return environ[key]


def _file(place: str, key: str, read: Read, environ: Mapping[str, str]) -> str:
    return read(Path(place))[key]


def _directory(place: str, key: str, read: Read, environ: Mapping[str, str]) -> str:
    if "/" in key or key in {".", ".."}:
        raise KeyError(key)
    return (Path(place) / key).read_text(encoding="utf-8").removesuffix("\n")


_PROVIDERS: Mapping[str, Callable[[str, str, Read, Mapping[str, str]], str]] = {
    "directory": _directory,
    "env": _env,
    "file": _file,
}


def _invalid(setting: str, why: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_CONFIG, f"{setting}: {why}")
