"""
Client properties as the field's clients take them: dotted names, text values, some of them secret.

Whether one stands in `fluvial.toml`, in a variable or in a properties file makes no difference to what it means. A
value is never part of a message unless its property is known and no secret.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fluvial.errors import ConfigError

_KEY = re.compile(r"((?:\\.|[^\\=:\s])+)\s*[=:\s]?\s*")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """A known property: which values it takes, what to write where one will not do, and whether it may be shown."""

    check: Callable[[str], bool] = bool
    repair: str = "write some text"
    secret: bool = False


@dataclass(frozen=True, slots=True)
class Given:
    """A value as somebody wrote it, and where."""

    value: str = field(repr=False)
    where: str


@dataclass(frozen=True, slots=True, repr=False)
class Properties:
    """
    Properties that were checked, by name. Two are equal when they mean the same, wherever they were read.

    `origins` says where each was given; one that a program gave is spoken of by its name.
    """

    pairs: tuple[tuple[str, str], ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, given: Mapping[str, Given]) -> "Properties":
        """Take what has been checked."""
        pairs = tuple(sorted((name, each.value) for name, each in given.items()))
        return cls(pairs, {name: each.where for name, each in given.items()})

    def __repr__(self) -> str:
        return f"Properties({', '.join(name for name, _ in self.pairs)})"

    def __bool__(self) -> bool:
        return bool(self.pairs)

    def as_dict(self) -> dict[str, str]:
        """The values by name, secrets among them."""
        return dict(self.pairs)

    def get(self, name: str) -> str | None:
        """One value, None where it was not given."""
        return dict(self.pairs).get(name)

    def where(self, name: str) -> str:
        """Where one was given, for people."""
        return self.origins.get(name, name)


NO_PROPERTIES = Properties()


def checked(given: Mapping[str, Given], known: Mapping[str, Property], aliases: Mapping[str, str]) -> dict[str, Given]:
    """Return what was given under the names of `known`; raises ConfigError that names the place and the repair."""
    found: dict[str, Given] = {}
    for written, each in given.items():
        name = aliases.get(written, written)
        if name not in known:
            raise ConfigError(f"{each.where}: no such property; {_meant(written, [*known, *aliases])}")
        if name in found and found[name].value != each.value:
            raise ConfigError(f"{each.where}: says otherwise than {found[name].where}; leave one of them out")
        value = each.value if known[name].secret else each.value.strip()
        if not known[name].check(value):
            shown = "this value" if known[name].secret else repr(value)
            raise ConfigError(f"{each.where}: {shown} will not do; {known[name].repair}")
        found[name] = Given(value, each.where)
    return found


def _meant(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1, cutoff=0.7)
    return f"did you mean {near[0]}?" if near else "see docs/configuration.md for those that there are"


def one_of(*values: str) -> Property:
    """A property that takes one of these words, in capitals or not."""
    return Property(
        check=lambda text: text.upper() in {each.upper() for each in values}, repair=f"write one of {', '.join(values)}"
    )


FLAG = Property(check=lambda text: text.lower() in {"true", "false"}, repair="write true or false")
MILLISECONDS = Property(check=str.isdecimal, repair="write a number of milliseconds")
SECRET = Property(repair="write the secret, or leave it to its variable", secret=True)
FILE = Property(repair="write the path of a file")
TEXT = Property()


def read_properties(path: Path) -> dict[str, Given]:
    """Read a properties file as Java's tools do, each value with its place; raises ConfigError."""
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    return {name: Given(value, f"{path}: {name}") for name, value in parse_properties(text).items()}


def parse_properties(text: str) -> dict[str, str]:
    """
    Read `name=value` lines; # and ! begin comments, and a line that ends in a backslash goes on in the next.

    `:` and blanks part a name from its value as well, and `\\n`, `\\u00e9` and the like stand for what they do in Java.
    """
    found: dict[str, str] = {}
    before = ""
    for raw in [*text.splitlines(), ""]:
        line = before + raw.lstrip()
        before = ""
        if not line or (line[0] in "#!"):
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            before = line[:-1]
            continue
        match = _KEY.match(line)
        if match is None:
            continue
        found[_unescaped(match[1])] = _unescaped(line[match.end() :])
    return found


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else _ESCAPED.get(found[2], found[2]), text)


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys of tables in tables with dots between, as `a.b = 1` and `"a.b" = 1` are one."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
