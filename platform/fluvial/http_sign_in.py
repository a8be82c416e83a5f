"""
Sign-in before an HTTP server of a node: every request is of a user of the cluster, or is answered with status 401.

The answer is that of Confluent's registry. What comes later finds the principal, and the host that it asks from, in the
request's state.
"""

import json
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fluvial.http_protocol import CERTIFICATE
from log_broker.core.security.mechanism import SignInError
from log_broker.core.security.principal import Principal
from log_broker.server.net.http_sign_in import HttpSignIn
from log_broker.server.net.sign_in import UsersUnknownError

REALM = "SchemaRegistry-Props"
"""What Confluent's documentation calls the realm; clients show it and look at nothing else of it."""

PRINCIPAL = "principal"
HOST = "host"
JSON = "application/json"

# Says who sends a request, from its `Authorization` header and its connection's certificate; raises SignInError.
Who = Callable[[str | None, Any], Awaitable[Principal]]


class SignedInOnly:
    """Lets requests pass whose sender is known, and all to `open_paths`; `who` stands in for the sign-in's own."""

    def __init__(
        self,
        app: ASGIApp,
        sign_in: HttpSignIn,
        *,
        who: Who | None = None,
        open_paths: Collection[str] = (),
        media_type: str = JSON,
    ) -> None:
        self._app = app
        self._sign_in = sign_in
        self._who = who or sign_in.principal
        self._open_paths = open_paths
        self._media_type = media_type

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._open_paths:
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        client = scope.get("client") or ("?", 0)
        authorization = Headers(scope=scope).get("authorization")
        try:
            state[PRINCIPAL] = await self._who(authorization, state.get(CERTIFICATE))
        except UsersUnknownError:
            await self._answer(503, "The node is starting and does not know the users yet")(scope, receive, send)
            return
        except SignInError as error:
            if authorization is not None:
                await self._sign_in.refused(f"{client[0]}:{client[1]}", str(error))
            await self._answer(401, "Unauthorized", code=401)(scope, receive, send)
            return
        state[HOST] = client[0]
        await self._app(scope, receive, send)

    def _answer(self, status: int, message: str, *, code: int | None = None) -> Response:
        headers = {"www-authenticate": f'basic realm="{REALM}"'} if status == 401 else None
        body = json.dumps({"error_code": code or status, "message": message}, separators=(",", ":"))
        return Response(body, status, headers, media_type=self._media_type)
