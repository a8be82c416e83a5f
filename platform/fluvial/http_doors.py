"""
The HTTP servers of a node as its settings secure them: who is let in, and by which certificates.
"""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from fluvial.http_sign_in import HOST, PRINCIPAL, SignedInOnly
from fluvial.local.state import is_loopback
from fluvial.registry.service.policy import Rules
from fluvial.registry.service.security import Adopt, RegistrySecurity
from log_broker.config.broker import BrokerConfig
from log_broker.core.cluster.access_changes import ITERATIONS_MAX, NAME_LENGTH_MAX
from log_broker.core.cluster.access_image import MECHANISM_NUMBERS
from log_broker.core.security.acls import Operation
from log_broker.core.security.authorizer import Authorizer, Rights
from log_broker.core.security.credentials import ScramMechanism
from log_broker.core.security.http_listeners import METRICS, REGISTRY, HttpListener, http_listener_of
from log_broker.core.security.listeners import ListenersConfig, listeners_of, protocols_of
from log_broker.core.security.nodes import NodePrincipals
from log_broker.core.security.scram import salted
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.net.exposure import FLAG
from log_broker.server.net.http_sign_in import HttpSignIn
from log_broker.server.net.sign_in import SignInHost
from log_broker.server.net.tls import TlsContext
from log_broker.server.process.ports import Cluster
from log_broker.server.quorum.authority import Authority
from log_broker.wire.apis import ApiKey

SALT_BYTES = 24


class SecuredHost(SignInHost, Cluster, Protocol):
    """What the HTTP servers ask of the node that they are beside."""

    @property
    def authority(self) -> Authority: ...

    @property
    def authorizer(self) -> Authorizer | None: ...

    @property
    def node_principals(self) -> NodePrincipals: ...


def listeners_config(config: BrokerConfig) -> ListenersConfig:
    """Return the listeners of a node with these settings; raises BrokerError(INVALID_CONFIG)."""
    return listeners_of(config.security, config.host, config.port, config.advertised_host)


def rules_of(config: BrokerConfig, authorizer: Authorizer | None = None) -> Rules:
    """What the cluster's settings say of the registry."""
    return Rules(
        unowned=config.fluvial_registry_unowned,
        admins=config.fluvial_registry_admins,
        super_users=frozenset() if authorizer is None else authorizer.super_users,
    )


def check_http_exposure(config: BrokerConfig, hosts: Mapping[str, str], *, allow_plaintext: bool) -> list[str]:
    """
    Return the addresses of HTTP servers that other machines reach, and where nobody is asked who they are.

    `hosts` are where those of some names listen. Raises BrokerError for any such address that was not asked for.
    """
    listeners = listeners_config(config)
    exposed = {
        name: host
        for name, host in hosts.items()
        if not is_loopback(host) and not http_listener_of(config.security, listeners, name).knows_callers
    }
    if exposed and not allow_plaintext:
        name, host = next(iter(exposed.items()))
        raise BrokerError(
            ErrorCode.INVALID_CONFIG,
            f"other machines reach {host}, where {name} asks nobody who they are: secure it "
            f"(listener.security.protocol.map={name}:SASL_SSL, docs/security.md), or add {FLAG} where everybody in the "
            "network may use it",
        )
    return list(dict.fromkeys(exposed.values()))


def registry_security(node: SecuredHost) -> RegistrySecurity | None:
    """
    Return who may use the registry of a node, None where it is open as the node itself is.

    Raises BrokerError(INVALID_CONFIG) for settings, and certificates, that cannot be used.
    """
    listener = http_listener_of(node.static_config.security, listeners_config(node.static_config), REGISTRY)
    if not listener.is_secured:
        return None
    tls = listener.tls
    return RegistrySecurity(
        node,
        HttpSignIn(node, listener),
        server_tls=_server_tls(node, listener),
        client_tls=None if tls is None else TlsContext(tls, is_server=False, clock=node.loop.time),
        adopt=_adopting(node),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSecurity:
    """Who may look at the metrics of a node: whoever may DESCRIBE the cluster."""

    node: SecuredHost
    sign_in: HttpSignIn
    server_tls: TlsContext | None

    def before(self, app: ASGIApp) -> ASGIApp:
        """Return what lets requests through to `app`, and answers the others."""
        return SignedInOnly(_WhoMayDescribe(app, self.node), self.sign_in)

    def close(self) -> None:
        self.sign_in.close()


def metrics_security(node: SecuredHost, *, host: str) -> MetricsSecurity | None:
    """
    Return who may look at the metrics of a node that are served on `host`, None where everybody may.

    On this machine alone that is everybody, unless METRICS is given a protocol. Raises as `registry_security`.
    """
    if is_loopback(host) and METRICS not in protocols_of(node.static_config.security):
        return None
    listener = http_listener_of(node.static_config.security, listeners_config(node.static_config), METRICS)
    if not listener.is_secured:
        return None
    return MetricsSecurity(node=node, sign_in=HttpSignIn(node, listener), server_tls=_server_tls(node, listener))


class _WhoMayDescribe:
    def __init__(self, app: ASGIApp, node: SecuredHost) -> None:
        self._app = app
        self._node = node

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._node.authorizer is not None:
            state = scope["state"]
            rights = Rights(self._node.authorizer, state[PRINCIPAL], state[HOST])
            if not rights.may_cluster(Operation.DESCRIBE):
                message = f"{state[PRINCIPAL]} may not DESCRIBE the cluster, which its metrics ask for"
                await JSONResponse({"error_code": 403, "message": message}, 403)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _server_tls(node: SecuredHost, listener: HttpListener) -> TlsContext | None:
    return None if listener.tls is None else TlsContext(listener.tls, is_server=True, clock=node.loop.time)


def _adopting(node: SecuredHost) -> Adopt:
    """Return what makes somebody a user of the cluster who has none of its passwords yet."""

    async def adopt(name: str, password: bytes) -> None:
        if len(name) > NAME_LENGTH_MAX:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"a user's name has at most {NAME_LENGTH_MAX} characters")
        # One mechanism, so that whoever changes the password leaves no former one behind; PLAIN is checked by it too.
        salt = os.urandom(SALT_BYTES)
        upsertion = {
            "name": name,
            "mechanism": MECHANISM_NUMBERS[ScramMechanism.SHA_512],
            "iterations": ITERATIONS_MAX,
            "salt": salt,
            "salted_password": await asyncio.to_thread(salted, password, salt, ITERATIONS_MAX, ScramMechanism.SHA_512),
        }
        if any(node.users.scram(name, mechanism) is not None for mechanism in ScramMechanism):
            return
        answer = await node.authority.ask_controller(
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, {"deletions": (), "upsertions": (upsertion,)}
        )
        for each in answer.results:
            if each.error_code:
                raise BrokerError(ErrorCode(each.error_code), each.error_message or "")

    return adopt
