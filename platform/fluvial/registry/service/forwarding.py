"""
Writes on a node that does not write: they are passed on, as they came, to the registry of the node that does.

`X-Forward` marks a request that was passed on once; it is not passed on again. While the writer changes, a request
waits here for the new one, as long as it is known that nothing of it was written, or saying it twice is no harm.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from starlette.requests import Request
from starlette.responses import Response

from fluvial.registry import errors
from fluvial.registry.errors import RefusedError
from fluvial.registry.model.registry import Registry
from fluvial.registry.service import requests
from fluvial.registry.service.handlers import principal_of, register_known
from fluvial.registry.service.replies import CLIENT_HEADER, MEDIA_TYPE, UNKNOWN_HEADER
from fluvial.registry.service.security import RegistrySecurity

if TYPE_CHECKING:
    import httpx

FORWARD_SECONDS_MAX = 15.0  # longer than it takes to elect another writer
RETRY_SECONDS = 0.1
FORWARDED = "x-forward"
_KEPT_HEADERS = ("content-type", "accept", "authorization", UNKNOWN_HEADER, CLIENT_HEADER)
_KEPT_ANSWER_HEADERS = ("content-type", "www-authenticate")
_GOES_ON = frozenset({errors.UNKNOWN_PRIMARY, errors.FORWARDING_FAILED, errors.STORE_FAILED})

Handler = Callable[[Request], Awaitable[Response]]


class Primary(Protocol):
    """Who writes."""

    @property
    def is_led_here(self) -> bool:
        """Whether this process does."""
        ...

    async def primary_url(self) -> str:
        """Return where the registry is that does; raises RefusedError when nobody knows."""
        ...


class Forwarder:
    """Has each write done where it can be done. `close` it at the end."""

    def __init__(self, registry: Registry, primary: Primary, security: RegistrySecurity | None = None) -> None:
        self._registry = registry
        self._primary = primary
        self._security = security
        self._http: httpx.AsyncClient | None = None
        self._verified_by: ssl.SSLContext | None = None  # by that client

    def wrap(self, handler: Handler, *, registers: bool = False) -> Handler:
        """Return a handler of writes that works on every node; `registers` says that it registers a schema."""

        async def handle(request: Request) -> Response:
            if request.headers.get(FORWARDED) is not None:
                if not self._primary.is_led_here:
                    raise errors.unknown_primary("this node got the forwarded request, but is not the writer either")
                return await handler(request)
            # Who says who it is is heard out by the node that writes.
            is_known = self._security is not None or "authorization" not in request.headers
            if registers and not self._primary.is_led_here and is_known:
                known = await register_known(request)
                if known is not None:
                    return known
            return await self._until_done(handler, request)

        return handle

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    async def _client(self) -> "httpx.AsyncClient":
        context = None if self._security is None else self._security.client_context()
        if self._http is None or context is not self._verified_by:
            # Importing it and reading the certificates of the system take a tenth of a second.
            made = await asyncio.to_thread(_http_client, context)
            if self._http is None or context is not self._verified_by:
                before, self._http, self._verified_by = self._http, made, context
                if before is not None:
                    await before.aclose()
            else:
                await made.aclose()
        return self._http

    async def _until_done(self, handler: Handler, request: Request) -> Response:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + FORWARD_SECONDS_MAX
        while True:
            try:
                if self._primary.is_led_here:
                    return await handler(request)
                return await self._forward(request)
            except RefusedError as error:
                # Registering twice gives the same id, and what is set twice is set; a version deleted twice is missed.
                may_repeat = error.code == errors.UNKNOWN_PRIMARY or request.method != "DELETE"
                if error.code not in _GOES_ON or not may_repeat or loop.time() >= deadline:
                    raise
            await asyncio.sleep(RETRY_SECONDS)

    async def _forward(self, request: Request) -> Response:
        http = await self._client()
        import httpx

        path = request.scope.get("raw_path", b"").partition(b"?")[0].decode("latin-1") or request.url.path
        query = f"?{request.url.query}" if request.url.query else ""
        headers = {name: request.headers[name] for name in _KEPT_HEADERS if name in request.headers}
        if self._security is not None:
            # The password, or the certificate, has been looked at here; the other node takes this one's word.
            headers |= self._security.passed_on(principal_of(request), request.state.host)
        url = await self._primary.primary_url()
        try:
            answer = await http.request(
                request.method,
                f"{url}{path}{query}",
                content=await requests.body_of(request),
                headers={**headers, FORWARDED: "true"},
            )
        except httpx.HTTPError as error:
            raise errors.forwarding_failed(f"{url}: {error or type(error).__name__}") from error
        if answer.status_code >= 500:
            raise _refusal(answer)
        if answer.status_code == 401 and self._security is not None:
            raise errors.forwarding_failed(f"{url} does not let this node in")
        # Whoever wrote through this node reads what it wrote from this node.
        await self._registry.refresh_if_possible()
        kept = {name: answer.headers[name] for name in _KEPT_ANSWER_HEADERS if name in answer.headers}
        return Response(answer.content, answer.status_code, {"content-type": MEDIA_TYPE, **kept})


def _http_client(verify: "ssl.SSLContext | None") -> "httpx.AsyncClient":
    import httpx

    return httpx.AsyncClient(timeout=FORWARD_SECONDS_MAX, trust_env=False, verify=True if verify is None else verify)


def _refusal(answer: "httpx.Response") -> RefusedError:
    try:
        content = answer.json()
        return RefusedError(answer.status_code, int(content["error_code"]), str(content["message"]))
    except (ValueError, KeyError, TypeError):
        return errors.forwarding_failed(f"HTTP {answer.status_code}")
