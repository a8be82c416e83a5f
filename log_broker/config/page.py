"""
The tables of the page on settings, made from where the settings are declared.

    python -m log_broker.config.page docs/configuration.md

writes them again between their marks; everything else on the page is written by hand.
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from log_broker.config.broker import BROKER_ALIASES, BROKER_KEYS, GROUP_KEYS
from log_broker.config.contracts import TOPIC_ALIASES
from log_broker.config.keys import INT_MAX, LONG_MAX, ConfigKey, ConfigType
from log_broker.config.security import SECRETS, SECURITY_KEYS
from log_broker.config.topic_keys import TOPIC_KEYS, broker_name

_UNITS_MS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))
_UNITS_BYTES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_MARK = "<!-- {}: made by python -m log_broker.config.page -->"
_END = "<!-- end -->"


def main(arguments: Sequence[str]) -> int:
    """Rewrite the tables of the named page; return the exit status."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m log_broker.config.page PAGE\n")
        return 2
    page = Path(arguments[0])
    page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def with_tables(page: str) -> str:
    """Return the page with its tables as the code has them now; raises ValueError for a page without their marks."""
    tables = {
        "topics": _topic_table(),
        "brokers": _broker_table(),
        "security": _security_table(),
        "groups": _group_table(),
        "other names": _alias_table(),
        "kafka": _kafka(),
    }
    for name, lines in tables.items():
        mark = _MARK.format(name)
        front, found, rest = page.partition(mark)
        _, end, back = rest.partition(_END)
        if not found or not end:
            raise ValueError(f"the page has no part that begins with {mark} and ends with {_END}")
        page = "\n".join([front + mark, "", *lines, "", end + back])
    return page


def _topic_table() -> list[str]:
    return _table(
        ("setting", "default", "allowed", "the broker's default for it", "what it does"),
        (
            (f"`{name}`", _value(key, key.default), _allowed(key), f"`{broker_name(name)}`", key.doc)
            for name, key in sorted(TOPIC_KEYS.items())
        ),
    )


def _broker_table() -> list[str]:
    return _table(
        ("setting", "default", "allowed", "changes live", "what it does"),
        (
            (
                f"`{name}`",
                _value(key, key.default),
                _allowed(key),
                "at the next start" if key.read_only else "yes",
                key.doc,
            )
            for name, key in sorted(BROKER_KEYS.items())
        ),
    )


def _security_table() -> list[str]:
    return _table(
        ("setting", "default", "allowed", "what it does"),
        (
            (f"`{name}`", _value(key, key.default), "secret" if name in SECRETS else _allowed(key), key.doc)
            for name, key in sorted(SECURITY_KEYS.items())
        ),
    )


def _group_table() -> list[str]:
    return _table(
        ("setting", "default", "what it does"),
        ((f"`{name}`", f"the broker's `group.{name}`", key.doc) for name, key in sorted(GROUP_KEYS.items())),
    )


def _alias_table() -> list[str]:
    aliases = [(f"`{name}`", f"`{kept}`") for name, (kept, _) in BROKER_ALIASES.items()]
    aliases += [(f"`{name}`", f"`{kept}`: `true` is `id`") for name, kept in TOPIC_ALIASES.items()]
    return _table(("name", "is kept and reported as"), aliases)


def _kafka() -> list[str]:
    keys = sorted([*TOPIC_KEYS.values(), *BROKER_KEYS.values(), *SECURITY_KEYS.values()], key=lambda key: key.name)
    return _table(
        ("setting", "here", "Kafka"),
        (
            (f"`{key.name}`", _value(key, key.default), _value(key, key.kafka_default))
            for key in keys
            if key.kafka_default is not None
        ),
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _value(key: ConfigKey, text: str) -> str:
    """A value as people read it: `604800000` (7 d)."""
    if text in {str(LONG_MAX), str(INT_MAX)}:
        return "no limit"
    units = _UNITS_MS if key.name.endswith(".ms") else _UNITS_BYTES if key.name.endswith((".bytes", ".size")) else ()
    if key.type in {ConfigType.INT, ConfigType.LONG}:
        for size, unit in units:
            if int(text) > 0 and int(text) % size == 0:
                return f"`{text}` ({int(text) // size} {unit})"
    return f"`{text}`" if text else "empty"


def _allowed(key: ConfigKey) -> str:
    if key.type is ConfigType.BOOLEAN:
        return "`true`, `false`"
    if key.choices:
        return ", ".join(f"`{choice}`" for choice in key.choices)
    if key.most in {LONG_MAX, INT_MAX}:
        return f"from {key.least}"
    if key.form:
        return f"`{key.form}`"
    return key.bounds or "any text"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
