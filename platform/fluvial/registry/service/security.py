"""
The registry of a secured node: who asks is a user of the cluster, and what nodes pass on to each other is signed for.

A producer of the registry from before is let in by its own password until the cluster has a user of its name, and is
made that user by it (docs/decisions/0031-the-registry-has-the-clusters-users.md).
"""

import base64
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Protocol
from urllib.parse import quote, unquote

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from fluvial.http_protocol import CERTIFICATE
from fluvial.http_sign_in import HOST, PRINCIPAL, SignedInOnly
from fluvial.registry import errors
from fluvial.registry.service.auth import Authenticator
from fluvial.registry.service.replies import MEDIA_TYPE, Reply
from fluvial.registry.service.rights import Caller
from log_broker.core.security.acls import Operation
from log_broker.core.security.authorizer import Authorizer, Rights
from log_broker.core.security.mechanism import SignInError
from log_broker.core.security.nodes import NodePrincipals
from log_broker.core.security.principal import Principal
from log_broker.server.net.http_sign_in import HttpSignIn, read_basic
from log_broker.server.net.tls import TlsContext

FOR_PRINCIPAL, FOR_HOST = "x-fluvial-principal", "x-fluvial-host"
"""Headers of what a node passes on: on whose behalf, and where that one asked from."""

log = logging.getLogger(__name__)

# Makes a user of the cluster: its name and its password.
Adopt = Callable[[str, bytes], Awaitable[None]]


class Secured(Protocol):
    """What a secured registry asks of its node."""

    @property
    def authorizer(self) -> Authorizer | None: ...

    @property
    def node_principals(self) -> NodePrincipals: ...


class RegistrySecurity:
    """Who may use a registry, and how its node asks those of others. `close` it at the end."""

    def __init__(
        self,
        node: Secured,
        sign_in: HttpSignIn,
        *,
        server_tls: TlsContext | None,
        client_tls: TlsContext | None,
        adopt: Adopt,
    ) -> None:
        self.server_tls = server_tls
        self._node = node
        self._sign_in = sign_in
        self._client_tls = client_tls
        self._adopt = adopt
        self._producers: Authenticator | None = None

    def before(self, app: ASGIApp, producers: Authenticator) -> ASGIApp:
        """Return what lets requests through to `app` with their `Caller`, and answers the others."""
        self._producers = producers
        return SignedInOnly(_WithCaller(app, self), self._sign_in, who=self._who, media_type=MEDIA_TYPE)

    def caller(self, principal: Principal, host: str, headers: Headers) -> Caller:
        """Return on whose behalf a request is made; raises RefusedError where a stranger acts for another."""
        named = headers.get(FOR_PRINCIPAL)
        if named is not None:
            if not self._is_node(principal, host):
                raise errors.forbidden(f"{principal} is no node of the cluster, and only nodes act for others")
            try:
                principal, host = Principal.parse(unquote(named)), unquote(headers.get(FOR_HOST, host))
            except ValueError as error:
                raise errors.invalid_request(f"{FOR_PRINCIPAL}: {error}") from None
        authorizer = self._node.authorizer
        return Caller(principal, None if authorizer is None else Rights(authorizer, principal, host))

    def passed_on(self, principal: Principal, host: str) -> dict[str, str]:
        """Return the headers by which another node knows this one, and on whose behalf it asks."""
        headers = {FOR_PRINCIPAL: quote(str(principal)), FOR_HOST: quote(host)}
        account = self._sign_in.listener.account
        if account is not None:
            text = f"{account.name}:{account.password}".encode()
            headers["authorization"] = f"Basic {base64.b64encode(text).decode()}"
        return headers

    def client_context(self) -> ssl.SSLContext | None:
        """Return what other nodes' registries are verified by, and shown; None where they are asked in plain text."""
        return None if self._client_tls is None else self._client_tls.current()

    def close(self) -> None:
        self._sign_in.close()

    def _is_node(self, principal: Principal, host: str) -> bool:
        authorizer = self._node.authorizer
        if authorizer is not None:
            return Rights(authorizer, principal, host).may_cluster(Operation.CLUSTER_ACTION)
        return self._node.node_principals.may_be(principal)

    async def _who(self, authorization: str | None, certificate: dict[str, object] | None) -> Principal:
        try:
            return await self._sign_in.principal(authorization, certificate)
        except SignInError:
            if authorization is None or not self._sign_in.listener.protocol.signs_in:
                raise
            found = await self._former_producer(*read_basic(authorization))
            if found is None:
                raise
            return found

    async def _former_producer(self, name: str, password: bytes) -> Principal | None:
        """Return a producer of the registry that shows its own password, made a user; None for anybody else."""
        principal = Principal(name)
        authorizer = self._node.authorizer
        is_super = authorizer is not None and str(principal) in authorizer.super_users
        if self._producers is None or is_super or self._sign_in.knows(name):
            # A name that has all rights was perhaps taken when nobody asked for any.
            return None
        if not await self._producers.shows(name, password.decode("utf-8", "surrogateescape")):
            return None
        try:
            await self._adopt(name, password)
            log.info(
                "producer %s of the schema registry is now a user of the cluster, with the password that it has", name
            )
        except Exception as error:
            # Its own password goes on being good.
            log.warning("producer %s of the schema registry is not made a user yet: %s", name, error)
        return principal


class _WithCaller:
    """Puts the caller into the request's state."""

    def __init__(self, app: ASGIApp, security: RegistrySecurity) -> None:
        self._app = app
        self._security = security

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            state = scope["state"]
            try:
                caller = self._security.caller(state[PRINCIPAL], state[HOST], Headers(scope=scope))
            except errors.RefusedError as error:
                content = {"error_code": error.code, "message": str(error)}
                await Reply(content, status_code=error.status)(scope, receive, send)
                return
            state["caller"] = caller
            state[PRINCIPAL] = caller.principal
            if caller.rights is not None:
                state[HOST] = caller.rights.host
            state.pop(CERTIFICATE, None)
        await self._app(scope, receive, send)
