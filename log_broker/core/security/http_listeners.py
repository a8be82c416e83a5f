"""
The HTTP servers of a node as listeners: how each is spoken to, and who is let in there.

They are called REGISTRY and METRICS, and are given a protocol and certificates as listeners of brokers are, by
`listener.security.protocol.map` and `listener.name.registry.…`. Without that they ask for what the node's listeners ask
for: TLS if one of them is encrypted, a user if at one of them clients sign in.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from log_broker.config.security import SecuritySettings
from log_broker.core.security.listeners import (
    Account,
    ListenersConfig,
    Protocol,
    TlsConfig,
    protocols_of,
    sasl_of,
    tls_of,
)

REGISTRY = "REGISTRY"
METRICS = "METRICS"
_OWN_CERTIFICATE = ("ssl.keystore.location", "ssl.keystore.certificate.chain")
_BY = {
    (False, False): Protocol.PLAINTEXT,
    (True, False): Protocol.SSL,
    (False, True): Protocol.SASL_PLAINTEXT,
    (True, True): Protocol.SASL_SSL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpListener:
    """
    One HTTP server of a node; with SASL in its protocol a user and a password are asked for, by HTTP Basic.

    `users` stand in the settings, all others are the cluster's. `account` is by what nodes ask each other.
    """

    name: str
    protocol: Protocol
    tls: TlsConfig | None = None
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    failure_delay_ms: int = 0
    account: Account | None = None

    @property
    def scheme(self) -> str:
        """What its URLs begin with."""
        return "https" if self.protocol.is_encrypted else "http"

    @property
    def knows_callers(self) -> bool:
        """Whether it is known who asks."""
        return self.protocol.signs_in or (self.tls is not None and self.tls.client_auth != "none")

    @property
    def is_secured(self) -> bool:
        """Whether it asks who somebody is, or encrypts."""
        return self.protocol is not Protocol.PLAINTEXT


def http_listener_of(settings: SecuritySettings, listeners: ListenersConfig, name: str) -> HttpListener:
    """Return what the settings make of the HTTP server of that name; raises BrokerError(INVALID_CONFIG)."""
    all_of_them = listeners.listeners
    protocol = protocols_of(settings).get(
        name,
        _BY[
            any(each.protocol.is_encrypted for each in all_of_them), any(each.protocol.signs_in for each in all_of_them)
        ],
    )
    if not protocol.signs_in:
        return HttpListener(
            name=name,
            protocol=protocol,
            tls=_tls(settings, listeners, name) if protocol.is_encrypted else None,
            account=listeners.account,
        )
    sasl = sasl_of(settings, name)
    account = listeners.account
    return HttpListener(
        name=name,
        protocol=protocol,
        tls=_tls(settings, listeners, name) if protocol.is_encrypted else None,
        users={**sasl.users, **({} if account is None else {account.name: account.password})},
        failure_delay_ms=sasl.failure_delay_ms,
        account=account,
    )


def _tls(settings: SecuritySettings, listeners: ListenersConfig, name: str) -> TlsConfig:
    """Return its own certificates, or else those of the first listener that has some."""
    if not any(settings.text(each, name) for each in _OWN_CERTIFICATE):
        known = next((each.tls for each in listeners.listeners if each.tls is not None), None)
        if known is not None:
            return known
    return tls_of(settings, name)
