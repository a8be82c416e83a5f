"""
Sign-in before an HTTP server: every request is of a user of the cluster, or is answered with status 401.

The answer is that of Confluent's registry. What comes later finds the principal, and the host that it asks from, in the
request's state. Who that is says a `SignIn`: `HttpSignIn` beside a node, elsewhere that of `fluvial.cluster.users`.
"""

import json
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Protocol

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fluvial.http_protocol import CERTIFICATE
from log_broker.core.security.mechanism import SignInError
from log_broker.core.security.principal import Principal
from log_broker.server.net.sign_in import UsersUnknownError

REALM = "SchemaRegistry-Props"
"""What Confluent's documentation calls the realm; clients show it and look at nothing else of it."""

PRINCIPAL = "principal"
HOST = "host"
JSON = "application/json"

# Says who sends a request, from its `Authorization` header and its connection's certificate; raises SignInError.
Who = Callable[[str | None, Any], Awaitable[Principal]]


class SignIn(Protocol):
    """Tells who sends a request."""

    async def principal(self, authorization: str | None, certificate: Any) -> Principal:
        """Return it; raises SignInError, and UsersUnknownError while nobody can tell."""
        ...

    async def refused(self, peer: str, reason: str) -> None:
        """Tell of a refusal, and return when it may be answered."""
        ...


class SignedInOnly:
    """
    Lets requests and web sockets pass whose sender is known, and all to `open_paths`.

    `who` stands in for the sign-in's own. Browsers show `realm` where they ask for the password.
    """

    def __init__(
        self,
        app: ASGIApp,
        sign_in: SignIn,
        *,
        who: Who | None = None,
        open_paths: Collection[str] = (),
        media_type: str = JSON,
        realm: str = REALM,
    ) -> None:
        self._app = app
        self._sign_in = sign_in
        self._who = who or sign_in.principal
        self._open_paths = open_paths
        self._media_type = media_type
        self._realm = realm

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"} or scope["path"] in self._open_paths:
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        client = scope.get("client") or ("?", 0)
        authorization = Headers(scope=scope).get("authorization")
        try:
            state[PRINCIPAL] = await self._who(authorization, state.get(CERTIFICATE))
        except UsersUnknownError as error:
            message = str(error) or "The node is starting and does not know the users yet"
            await self._answer(503, message)(scope, receive, send)
            return
        except SignInError as error:
            if authorization is not None:
                await self._sign_in.refused(f"{client[0]}:{client[1]}", str(error))
            await self._answer(401, "Unauthorized", code=401)(scope, receive, send)
            return
        state[HOST] = client[0]
        await self._app(scope, receive, send)

    def _answer(self, status: int, message: str, *, code: int | None = None) -> Response:
        headers = {"www-authenticate": f'basic realm="{self._realm}"'} if status == 401 else None
        body = json.dumps({"error_code": code or status, "message": message}, separators=(",", ":"))
        return Response(body, status, headers, media_type=self._media_type)
