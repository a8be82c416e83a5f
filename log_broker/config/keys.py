"""
What a setting is: its name, type, default and bounds, and how its text is read.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from log_broker.errors import BrokerError, ErrorCode

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
MINUTE_MS = 60 * 1000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


class ConfigType(IntEnum):
    """The type of a setting as DescribeConfigs reports it."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One setting. `default` is text as a user would write it; bounds are inclusive; `choices` limits the words."""

    name: str
    type: ConfigType
    default: str
    doc: str
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    read_only: bool = False  # given at start, or never looked at again: a change would not take effect
    kafka_default: str | None = None  # Kafka's, where ours is another
    broker_name: str = ""  # of a topic's setting: the broker's that holds its default, where it is called otherwise
    reads: Callable[[str], Any] | None = None  # of text with a form of its own; raises ValueError saying what is wrong
    form: str = ""  # that form, for people

    @property
    def attribute(self) -> str:
        """The field of the config class that holds it."""
        return self.name.replace(".", "_")

    def parse(self, text: str) -> Any:
        """Return the typed value; raises BrokerError(INVALID_CONFIG) that says what is allowed."""
        if self.reads is not None:
            try:
                return self.reads(text.strip())
            except ValueError as error:
                raise self._refusal(text, str(error)) from None
        try:
            value = _PARSERS[self.type](text.strip())
        except ValueError:
            raise self._refusal(text, f"is not a {self.type.name.lower()}") from None
        if (self.least is not None and value < self.least) or (self.most is not None and value > self.most):
            raise self._refusal(text, f"is outside {self.bounds}")
        words = value if self.type is ConfigType.LIST else (value,)
        if self.choices and not set(words) <= set(self.choices):
            raise self._refusal(text, f"is not one of {self.bounds}")
        return value

    @property
    def bounds(self) -> str:
        """What is allowed, for people: `0 … 9`, `producer, gzip`; empty where the type says all."""
        if self.choices:
            return ", ".join(self.choices)
        if self.form:
            return self.form
        if self.least is None or self.most is None:
            return ""
        return f"{self.least:g} … {self.most:g}" if self.type is ConfigType.DOUBLE else f"{self.least} … {self.most}"

    def _refusal(self, text: str, why: str) -> BrokerError:
        return BrokerError(ErrorCode.INVALID_CONFIG, f"Invalid value {text} for configuration {self.name}: it {why}")


def _parse_boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


_PARSERS: dict[ConfigType, Callable[[str], Any]] = {
    ConfigType.BOOLEAN: _parse_boolean,
    ConfigType.STRING: str,
    ConfigType.INT: int,
    ConfigType.LONG: int,
    ConfigType.DOUBLE: float,
    ConfigType.LIST: lambda text: frozenset(word.strip() for word in text.split(",") if word.strip()),
}


def long_key(
    name: str,
    default: int,
    doc: str,
    *,
    least: int = 0,
    most: int = LONG_MAX,
    kafka_default: str | None = None,
    broker_name: str = "",
) -> ConfigKey:
    """A setting of 64 bits."""
    return ConfigKey(
        name=name,
        type=ConfigType.LONG,
        default=str(default),
        doc=doc,
        least=least,
        most=most,
        kafka_default=kafka_default,
        broker_name=broker_name,
    )


def int_key(
    name: str,
    default: int,
    doc: str,
    *,
    least: int = 0,
    most: int = INT_MAX,
    read_only: bool = False,
    kafka_default: str | None = None,
    broker_name: str = "",
) -> ConfigKey:
    """A setting of 32 bits."""
    return ConfigKey(
        name=name,
        type=ConfigType.INT,
        default=str(default),
        doc=doc,
        least=least,
        most=most,
        read_only=read_only,
        kafka_default=kafka_default,
        broker_name=broker_name,
    )


def ratio_key(name: str, default: float, doc: str, *, broker_name: str = "") -> ConfigKey:
    """A share between 0 and 1."""
    return ConfigKey(
        name=name, type=ConfigType.DOUBLE, default=str(default), doc=doc, least=0, most=1, broker_name=broker_name
    )


def flag_key(name: str, default: bool, doc: str, *, broker_name: str = "") -> ConfigKey:
    """A setting that is true or false."""
    return ConfigKey(name=name, type=ConfigType.BOOLEAN, default=str(default).lower(), doc=doc, broker_name=broker_name)


def word_key(name: str, default: str, doc: str, *choices: str, broker_name: str = "") -> ConfigKey:
    """A setting that is one word, of `choices` if there are any."""
    return ConfigKey(
        name=name, type=ConfigType.STRING, default=default, doc=doc, choices=choices, broker_name=broker_name
    )
