"""What the settings make of each listener: its address, its protocol, its certificates, and who may sign in there."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from log_broker.config.security import SECURITY_KEYS, SecuritySettings
from log_broker.core.security.certificates import PrincipalRules
from log_broker.errors import BrokerError, ErrorCode

_ADDRESS = re.compile(r"([A-Za-z0-9_.-]+)://(\[[^\]]+\]|[^\[\]/:]*):(\d{1,5})")
_JAAS = re.compile(r'([\w.-]+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|([^\s;"]+))')
_USER = "user_"
PORT_MAX = 65535


class Protocol(StrEnum):
    """How a listener is spoken to."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def is_encrypted(self) -> bool:
        return self in {Protocol.SSL, Protocol.SASL_SSL}

    @property
    def signs_in(self) -> bool:
        return self in {Protocol.SASL_PLAINTEXT, Protocol.SASL_SSL}

    @property
    def number(self) -> int:
        """The protocol's number in registrations, by Kafka's `SecurityProtocol`."""
        return tuple(Protocol).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """Certificates of a listener, by file or as PEM texts; empty where there is none."""

    location: str = ""
    chain: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)
    trusted_location: str = ""
    trusted: str = field(default="", repr=False)
    client_auth: str = "none"
    versions: frozenset[str] = frozenset({"TLSv1.2", "TLSv1.3"})
    rules: PrincipalRules = field(default_factory=lambda: PrincipalRules.parse("DEFAULT"))
    checks_host: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslConfig:
    """Sign-in at a listener. `users` stand in the settings; all others are the cluster's."""

    mechanisms: tuple[str, ...]
    lifetime_ms: int = 0
    failure_delay_ms: int = 100
    receive_bytes_max: int = 524_288
    users: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """By what a node signs in to another."""

    mechanism: str
    name: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig:
    """One listener; `advertised` is what its clients are told, where that is not where it listens."""

    name: str
    protocol: Protocol
    host: str
    port: int
    advertised: tuple[str, int] | None = None
    tls: TlsConfig | None = None
    sasl: SaslConfig | None = None

    @property
    def knows_callers(self) -> bool:
        """Whether it is known who comes by it."""
        return self.sasl is not None or (self.tls is not None and self.tls.client_auth != "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenersConfig:
    """
    All listeners of a node, the one by which nodes reach each other first; `account` is for signing in there.

    `controller` is the one by which controllers are reached, if that is another; a node that is none has it not among
    its own, and only connects to those of others.
    """

    listeners: tuple[ListenerConfig, ...]
    account: Account | None = None
    controller: ListenerConfig | None = None
    controller_account: Account | None = None

    @property
    def own(self) -> ListenerConfig:
        """The listener by which nodes reach each other."""
        return self.listeners[0]

    @property
    def is_secured(self) -> bool:
        """Whether any of them asks who somebody is, or encrypts."""
        return any(each.protocol is not Protocol.PLAINTEXT for each in self.listeners)


def listeners_of(
    settings: SecuritySettings, host: str, port: int, advertised_host: str | None, *, is_controller: bool = False
) -> ListenersConfig:
    """
    Return the listeners that the settings describe; without `listeners` that is one at `host` and `port`.

    A node that may be the controller has that of controllers among them, if there is one.

    Raises BrokerError(INVALID_CONFIG) that names the setting.
    """
    protocols = protocols_of(settings)
    addresses = _addresses(settings, "listeners")
    advertised = _addresses(settings, "advertised.listeners")
    if not addresses:
        name = _only(settings, protocols)
        addresses = {name: (host, port)}
        if advertised_host is not None and not advertised:
            advertised = {name: (advertised_host, 0)}
    for name in advertised.keys() - addresses.keys():
        raise _invalid("advertised.listeners", f"{name} is not among the listeners")
    made = {
        name: _listener(settings, name, _protocol(protocols, name), address, advertised.get(name))
        for name, address in addresses.items()
    }
    controller = _controller_name(settings)
    own_name = _own_name(settings, {name: each for name, each in made.items() if name != controller})
    own, account = _with_account(settings, made[own_name], "sasl.mechanism.inter.broker.protocol")
    if controller is None:
        others = tuple(each for name, each in made.items() if name != own_name)
        return ListenersConfig(listeners=(own, *others), account=account)
    if is_controller and controller not in made:
        raise _invalid("controller.listener.names", f"{controller} is not among the listeners of this controller")
    found = made.get(controller) or _listener(settings, controller, _protocol(protocols, controller), ("", 0), None)
    reached, controller_account = _with_account(settings, found, "sasl.mechanism.controller.protocol")
    others = tuple(reached if name == controller else each for name, each in made.items() if name != own_name)
    return ListenersConfig(
        listeners=(own, *others), account=account, controller=reached, controller_account=controller_account
    )


def _controller_name(settings: SecuritySettings) -> str | None:
    """Name the listener of the controllers, None where it is that of all nodes."""
    names = [text.strip() for text in settings.text("controller.listener.names").split(",") if text.strip()]
    if len(names) > 1:
        raise _invalid("controller.listener.names", f"names {len(names)} listeners, and controllers have one")
    own = settings.text("inter.broker.listener.name")
    if names and names[0] == own:
        raise _invalid("controller.listener.names", f"{own} is the listener between brokers already: leave it out")
    return names[0] if names else None


def _with_account(
    settings: SecuritySettings, listener: ListenerConfig, mechanism: str
) -> tuple[ListenerConfig, Account | None]:
    """Return a listener at which nodes sign in, if it asks for that, and by what they do."""
    if listener.sasl is None:
        return listener, None
    account = _account(settings, listener.name, mechanism)
    if account.mechanism not in listener.sasl.mechanisms:
        raise _invalid(mechanism, f"{account.mechanism} is not enabled at {listener.name}")
    sasl = replace(listener.sasl, users={**listener.sasl.users, account.name: account.password})
    return replace(listener, sasl=sasl), account


def protocols_of(settings: SecuritySettings) -> dict[str, Protocol]:
    """Return the protocol of each name that the settings give one; raises BrokerError(INVALID_CONFIG)."""
    found = {each.value: each for each in Protocol}
    for pair in filter(None, map(str.strip, settings.text("listener.security.protocol.map").split(","))):
        name, _, protocol = pair.partition(":")
        if not name or protocol.strip() not in set(Protocol):
            raise _invalid("listener.security.protocol.map", f"{pair!r} is not NAME:PROTOCOL, of {', '.join(Protocol)}")
        found[name.strip()] = Protocol(protocol.strip())
    return found


def _protocol(protocols: Mapping[str, Protocol], name: str) -> Protocol:
    if name not in protocols:
        raise _invalid("listener.security.protocol.map", f"has no protocol for listener {name}")
    return protocols[name]


def _addresses(settings: SecuritySettings, setting: str) -> dict[str, tuple[str, int]]:
    found: dict[str, tuple[str, int]] = {}
    for text in filter(None, map(str.strip, settings.text(setting).split(","))):
        address = _ADDRESS.fullmatch(text)
        if address is None or int(address[3]) > PORT_MAX:
            raise _invalid(setting, f"{text!r} is not NAME://host:port")
        if address[1] in found:
            raise _invalid(setting, f"listener {address[1]} stands there twice")
        found[address[1]] = (address[2].strip("[]"), int(address[3]))
    return found


def _only(settings: SecuritySettings, protocols: Mapping[str, Protocol]) -> str:
    """Name the one listener of a node that was given an address alone."""
    named = settings.text("inter.broker.listener.name") or settings.text("security.inter.broker.protocol")
    if named and named not in protocols:
        raise _invalid("listener.security.protocol.map", f"has no protocol for listener {named}")
    return named or Protocol.PLAINTEXT.value


def _own_name(settings: SecuritySettings, made: Mapping[str, ListenerConfig]) -> str:
    named = settings.text("inter.broker.listener.name")
    wanted = settings.text("security.inter.broker.protocol")
    if named and wanted:
        raise _invalid("inter.broker.listener.name", "and security.inter.broker.protocol are given: leave one out")
    if named:
        if named not in made:
            raise _invalid("inter.broker.listener.name", f"{named} is not among the listeners")
        return named
    if not wanted and len(made) == 1:
        return next(iter(made))
    fitting = [name for name, each in made.items() if each.protocol == (wanted or Protocol.PLAINTEXT)]
    if len(fitting) != 1:
        raise _invalid("inter.broker.listener.name", "is needed: it says by which listener nodes reach each other")
    return fitting[0]


def _listener(
    settings: SecuritySettings,
    name: str,
    protocol: Protocol,
    address: tuple[str, int],
    advertised: tuple[str, int] | None,
) -> ListenerConfig:
    return ListenerConfig(
        name=name,
        protocol=protocol,
        host=address[0],
        port=address[1],
        advertised=advertised,
        tls=tls_of(settings, name) if protocol.is_encrypted else None,
        sasl=sasl_of(settings, name) if protocol.signs_in else None,
    )


def tls_of(settings: SecuritySettings, name: str) -> TlsConfig:
    """Return the certificates that the settings give a listener; raises BrokerError(INVALID_CONFIG)."""

    def text(setting: str) -> str:
        return settings.text(setting, name)

    chain, key = text("ssl.keystore.certificate.chain"), text("ssl.keystore.key")
    if not text("ssl.keystore.location") and not (chain and key):
        raise _invalid(
            "ssl.keystore.location",
            f"is needed for listener {name}, or ssl.keystore.certificate.chain and ssl.keystore.key",
        )
    try:
        rules = PrincipalRules.parse(text("ssl.principal.mapping.rules"))
    except ValueError as error:
        raise _invalid("ssl.principal.mapping.rules", str(error)) from None
    return TlsConfig(
        location=text("ssl.keystore.location"),
        chain=chain,
        key=key,
        key_password=text("ssl.key.password"),
        trusted_location=text("ssl.truststore.location"),
        trusted=text("ssl.truststore.certificates"),
        client_auth=text("ssl.client.auth"),
        versions=_parsed(settings, "ssl.enabled.protocols", name),
        rules=rules,
        checks_host=text("ssl.endpoint.identification.algorithm") == "https",
    )


def sasl_of(settings: SecuritySettings, name: str) -> SaslConfig:
    """Return how the settings let clients sign in at a listener; raises BrokerError(INVALID_CONFIG)."""
    mechanisms = tuple(sorted(_parsed(settings, "sasl.enabled.mechanisms", name)))
    if not mechanisms:
        raise _invalid("sasl.enabled.mechanisms", f"is empty for listener {name}: nobody could sign in there")
    users: dict[str, str] = {}
    for mechanism in mechanisms:
        options = _jaas(settings.text("sasl.jaas.config", name, mechanism))
        users |= {each.removeprefix(_USER): text for each, text in options.items() if each.startswith(_USER)}
    return SaslConfig(
        mechanisms=mechanisms,
        lifetime_ms=_parsed(settings, "connections.max.reauth.ms", name),
        failure_delay_ms=_parsed(settings, "connection.failed.authentication.delay.ms", name),
        receive_bytes_max=_parsed(settings, "sasl.server.max.receive.size", name),
        users=users,
    )


def _account(settings: SecuritySettings, name: str, setting: str) -> Account:
    mechanism = settings.text(setting, name)
    options = _jaas(settings.text("sasl.jaas.config", name, mechanism))
    if not options.get("username") or not options.get("password"):
        raise _invalid(
            "sasl.jaas.config",
            f'is needed for listener {name}, by which nodes reach each other: write username="…" password="…" in it',
        )
    return Account(mechanism=mechanism, name=options["username"], password=options["password"])


def _jaas(text: str) -> dict[str, str]:
    """Return the options of a login module: `Module required name="text" …;`."""
    return {found[1]: re.sub(r"\\(.)", r"\1", found[2] or "") or (found[3] or "") for found in _JAAS.finditer(text)}


def _parsed(settings: SecuritySettings, setting: str, listener: str) -> Any:
    return SECURITY_KEYS[setting].parse(settings.text(setting, listener))


def _invalid(setting: str, why: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_CONFIG, f"{setting}: {why}")
