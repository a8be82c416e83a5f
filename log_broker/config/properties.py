"""A properties file as Kafka's own tools read it: `name=value` lines, of which some may be secret."""

import re
from pathlib import Path

from log_broker.config.providers import resolved
from log_broker.errors import BrokerError, ErrorCode

_PAIR = re.compile(r"((?:\\.|[^\\=:\s])+)\s*[=:\s]?\s*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_settings(path: Path) -> dict[str, str]:
    """
    Read the settings that a file holds, with what their references to secrets elsewhere stand for.

    Raises BrokerError(INVALID_CONFIG) naming a file that cannot be read, or a setting whose reference leads nowhere.
    """
    try:
        return resolved(parse_settings(path.read_text(encoding="utf-8")), _plain)
    except OSError as error:
        raise BrokerError(ErrorCode.INVALID_CONFIG, f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BrokerError(ErrorCode.INVALID_CONFIG, f"{path}: is not UTF-8 text") from error


def _plain(path: Path) -> dict[str, str]:
    return parse_settings(path.read_text(encoding="utf-8"))


def parse_settings(text: str) -> dict[str, str]:
    """Read lines; # and ! begin comments, and a line that ends in a backslash goes on in the next one."""
    found: dict[str, str] = {}
    before = ""
    for raw in [*text.splitlines(), ""]:
        line = before + raw.lstrip()
        before = ""
        if not line or line[0] in "#!":
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            before = line[:-1]
            continue
        pair = _PAIR.match(line)
        if pair is not None:
            found[_unescaped(pair[1])] = _unescaped(pair[2])
    return found


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else _ESCAPED.get(found[2], found[2]), text)
