"""
Which requests a server of ours answers: those that ask it by a name of its own, and no page of another site's.

A web page that somebody looks at can send requests to a server on their machine: without asking first where the request
is as simple as a form's, and with reading the answer where its own name is made to lead there (DNS rebinding). The
servers on a developer's machine have no login, so both are turned down before anything looks at the request.
"""

import ipaddress
from collections.abc import Callable, Collection

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from fluvial.local.state import is_loopback

PRIVATE_ENDINGS = (".localhost", ".local", ".internal", ".test", ".home.arpa")
"""Names that nobody can register for a site of theirs; `host.docker.internal` is one."""

ANY_ORIGIN = "*"
FOREIGN = frozenset({"cross-site", "same-site"})
"""What `Sec-Fetch-Site` says of a page that is not this server's own."""


class OwnSiteOnly:
    """
    Turns down what is asked of another host, and what a page of another origin asks.

    `hosts` are the names that this server has besides an address or a name that cannot be a site's; None where it
    stands behind names that are not known here, so that any will do. `origins` are those whose pages may ask all the
    same, `*` for every page. Both are called at each request. `links` says of a path whether pages of other sites may
    have links that lead there.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Callable[[], Collection[str] | None] = frozenset,
        origins: Callable[[], Collection[str]] = frozenset,
        links: Callable[[str], bool] = lambda path: True,
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._origins = origins
        self._links = links

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason = None if scope["type"] not in {"http", "websocket"} else self._refusal(scope)
        if reason is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            # Before it is accepted, this is answered with status 403.
            await send({"type": "websocket.close", "code": 1008, "reason": reason[:100]})
        else:
            response = JSONResponse({"error_code": 403, "message": reason}, status_code=403)
            await response(scope, receive, send)

    def _refusal(self, scope: Scope) -> str | None:
        headers = Headers(scope=scope)
        host, hosts = headers.get("host", ""), self._hosts()
        if host and hosts is not None and not _is_own(_name(host), hosts):
            return f"This server is not {_name(host)[:100]}; if that name is meant to lead here, allow it"
        origins, origin = self._origins(), headers.get("origin")
        if ANY_ORIGIN in origins:
            return None
        if origin is not None:
            own = {f"http://{host}", f"https://{host}", f"ws://{host}", f"wss://{host}"}
            return (
                None
                if origin in origins or origin.lower() in own
                else f"Pages of {origin[:100]} may not send requests to this server"
            )
        if headers.get("sec-fetch-site") in FOREIGN and not (_is_link(scope, headers) and self._links(scope["path"])):
            return "Pages of other sites may not send requests to this server"
        return None


def _is_link(scope: Scope, headers: Headers) -> bool:
    """Whether a person followed a link here: the answer is shown to them and not to the page that has the link."""
    return scope.get("method") in {"GET", "HEAD"} and headers.get("sec-fetch-mode") == "navigate"


def _name(host: str) -> str:
    """The name or address in a `Host` header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0].lower().rstrip(".") if ":" in host else host.lower().rstrip(".")


def _is_own(name: str, hosts: Collection[str]) -> bool:
    """Whether no site of somebody else's can have this name."""
    if name in hosts or "." not in name or name.endswith(PRIVATE_ENDINGS):
        return True
    return is_address(name)


def is_address(name: str) -> bool:
    """Whether this is an IP address and not a name."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def hosts_for(host: str, known: Collection[str]) -> Collection[str] | None:
    """The names to answer to when listening on `host`: any where others reach it and none is `known`."""
    return {each.lower() for each in (host, *known)} if known or is_loopback(host) else None
