"""
The settings of listeners, TLS and sign-in, by Kafka's names (https://kafka.apache.org/documentation/#security).

They are given when a node starts, most of them in a file, for some are secret. Each may be set for one listener alone
as `listener.name.<name>.<setting>`, and for one mechanism of it as `listener.name.<name>.<mechanism>.<setting>`, names
in small letters.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from log_broker.config.keys import ConfigKey, ConfigType, int_key, long_key, word_key
from log_broker.errors import BrokerError, ErrorCode

OVERRIDE = "listener.name."
_OVERRIDE = re.compile(r"listener\.name\.(?P<listener>[^.]+)\.(?:(?P<mechanism>[^.]+)\.)?(?P<setting>[a-z]+\..+)")


def _text(name: str, default: str, doc: str, *, kafka_default: str | None = None, secret: bool = False) -> ConfigKey:
    kind = ConfigType.PASSWORD if secret else ConfigType.STRING
    return ConfigKey(name=name, type=kind, default=default, doc=doc, read_only=True, kafka_default=kafka_default)


def _word(name: str, default: str, doc: str, *choices: str, kafka_default: str) -> ConfigKey:
    return replace(word_key(name, default, doc, *choices), kafka_default=kafka_default)


_KEYS = (
    _text(
        "listeners",
        "",
        "Where the broker listens, each NAME://host:port; without it, at --host and --port.",
        kafka_default="PLAINTEXT://:9092",
    ),
    _text(
        "controller.listener.names",
        "",
        "The listener by which controllers are reached, if it is not the one by which brokers reach each other; its"
        " ports are then those of `controller.quorum.voters`.",
    ),
    _text("advertised.listeners", "", "What clients of each listener are told, if it differs from `listeners`."),
    _text(
        "listener.security.protocol.map",
        "",
        "The protocol of each listener, NAME:PROTOCOL; one that is called as a protocol needs no entry.",
        kafka_default="PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
    ),
    _text(
        "inter.broker.listener.name",
        "",
        "The listener by which nodes reach each other; the only one, or the only one in plain text, need not be named.",
    ),
    _word(
        "security.inter.broker.protocol",
        "",
        "Instead of `inter.broker.listener.name`: the protocol of that listener.",
        "",
        "PLAINTEXT",
        "SSL",
        "SASL_PLAINTEXT",
        "SASL_SSL",
        kafka_default="PLAINTEXT",
    ),
    _word(
        "ssl.keystore.type",
        "PEM",
        "The form of the broker's certificate; PEM alone is read.",
        "PEM",
        kafka_default="JKS",
    ),
    _word(
        "ssl.truststore.type",
        "PEM",
        "The form of what others are verified by; PEM alone is read.",
        "PEM",
        kafka_default="JKS",
    ),
    _text("ssl.keystore.location", "", "A PEM file with the broker's certificates and, if no other has it, its key."),
    _text("ssl.keystore.certificate.chain", "", "The broker's certificates themselves, in PEM."),
    _text("ssl.keystore.key", "", "The key of the broker's certificate itself, in PEM.", secret=True),
    _text("ssl.key.password", "", "What the key is encrypted with, if it is.", secret=True),
    _text("ssl.truststore.location", "", "A PEM file with the authorities that others' certificates are verified by."),
    _text("ssl.truststore.certificates", "", "These authorities themselves, in PEM."),
    word_key(
        "ssl.client.auth",
        "none",
        "Whether clients must show a certificate (required), may (requested), or are not asked for one.",
        "none",
        "requested",
        "required",
    ),
    ConfigKey(
        name="ssl.enabled.protocols",
        type=ConfigType.LIST,
        default="TLSv1.2,TLSv1.3",
        doc="The versions of TLS that are spoken.",
        choices=("TLSv1.2", "TLSv1.3"),
    ),
    _text(
        "ssl.principal.mapping.rules",
        "DEFAULT",
        "How the name of a client's certificate becomes a user's: DEFAULT, or RULE:pattern/replacement/[LU], several "
        "with commas between.",
    ),
    word_key(
        "ssl.endpoint.identification.algorithm",
        "https",
        "Whether a node that is connected to must have a certificate of its host's name; empty does not ask.",
        "https",
        "",
    ),
    ConfigKey(
        name="sasl.enabled.mechanisms",
        type=ConfigType.LIST,
        default="SCRAM-SHA-256,SCRAM-SHA-512",
        doc="The mechanisms by which clients may sign in.",
        choices=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
        kafka_default="GSSAPI",
    ),
    _word(
        "sasl.mechanism.inter.broker.protocol",
        "SCRAM-SHA-512",
        "The mechanism by which nodes sign in to each other.",
        "PLAIN",
        "SCRAM-SHA-256",
        "SCRAM-SHA-512",
        kafka_default="GSSAPI",
    ),
    _word(
        "sasl.mechanism.controller.protocol",
        "SCRAM-SHA-512",
        "The mechanism by which nodes sign in at the listener of `controller.listener.names`.",
        "PLAIN",
        "SCRAM-SHA-256",
        "SCRAM-SHA-512",
        kafka_default="GSSAPI",
    ),
    _text(
        "sasl.jaas.config",
        "",
        "The name and password by which nodes sign in to each other, and with `user_<name>` others that are let in.",
        secret=True,
    ),
    _text(
        "fluvial.sign.in.secret",
        "",
        "What the challenges for names that nobody has come from, the same on all nodes; without it that is the"
        " cluster's id, which who has signed in knows.",
        secret=True,
    ),
    long_key(
        "connections.max.reauth.ms",
        0,
        "How long a sign-in lasts; a client that does not sign in again by then is closed. 0 is for ever.",
    ),
    int_key(
        "connection.failed.authentication.delay.ms", 100, "How long the answer to a sign-in that failed is held back."
    ),
    int_key("sasl.server.max.receive.size", 524_288, "The largest request before sign-in.", least=1024),
)
SECURITY_KEYS: Mapping[str, ConfigKey] = {key.name: key for key in _KEYS}
SECRETS = frozenset(name for name, key in SECURITY_KEYS.items() if key.type is ConfigType.PASSWORD)


def setting_of(name: str) -> str | None:
    """Return which of the settings a name stands for, without the listener and mechanism in it; None for no such."""
    if name in SECURITY_KEYS:
        return name
    found = _OVERRIDE.fullmatch(name)
    if found is None:
        return None
    setting = found["setting"]
    # A mechanism has hyphens, `plain` excepted, and a setting begins with its subject: both readings are tried.
    whole = name.removeprefix(f"{OVERRIDE}{found['listener']}.")
    return next((each for each in (whole, setting) if each in SECURITY_KEYS), None)


def is_secret(name: str) -> bool:
    """Whether the value of a setting must not be shown."""
    return setting_of(name) in SECRETS


class SecuritySettings:
    """The settings that were given, by their names as written; never shown, for some are secret."""

    __slots__ = ("_texts",)

    def __init__(self, texts: Mapping[str, str] | None = None) -> None:
        """Raises BrokerError(INVALID_CONFIG) naming the setting and what is allowed."""
        self._texts = dict(texts or {})
        for name, text in self._texts.items():
            key = SECURITY_KEYS.get(setting_of(name) or "")
            if key is None:
                raise BrokerError(ErrorCode.INVALID_CONFIG, f"Unknown broker config name: {name}")
            if key.type is not ConfigType.PASSWORD:
                parsed_as(key, name, text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecuritySettings) and self._texts == other._texts

    def __hash__(self) -> int:
        return hash(frozenset(self._texts.items()))

    def __bool__(self) -> bool:
        return bool(self._texts)

    def __repr__(self) -> str:
        return f"SecuritySettings({', '.join(sorted(self._texts))})"

    def with_texts(self, texts: Mapping[str, str]) -> "SecuritySettings":
        """Return these settings with others; raises BrokerError(INVALID_CONFIG)."""
        return SecuritySettings({**self._texts, **texts})

    def shown(self) -> dict[str, str | None]:
        """Return what was given, secrets as None."""
        return {name: None if is_secret(name) else text for name, text in self._texts.items()}

    def find(self, setting: str, listener: str = "", mechanism: str = "") -> tuple[str, str] | None:
        """Return the name as written and the text of a setting, the narrowest first; None where it was not given."""
        own = f"{OVERRIDE}{listener.lower()}."
        for name in (f"{own}{mechanism.lower()}.{setting}", f"{own}{setting}", setting):
            if name in self._texts:
                return name, self._texts[name]
        return None

    def text(self, setting: str, listener: str = "", mechanism: str = "") -> str:
        """Return the text that holds for a setting, its default where it was not given."""
        found = self.find(setting, listener, mechanism)
        return SECURITY_KEYS[setting].default if found is None else found[1].strip()


def parsed_as(key: ConfigKey, name: str, text: str) -> object:
    """Parse a setting under the name that it was written by; raises BrokerError(INVALID_CONFIG)."""
    try:
        return key.parse(text)
    except BrokerError as error:
        if name == key.name:
            raise
        raise BrokerError(ErrorCode.INVALID_CONFIG, f"{name}: {error}") from None
