"""What a browser asks before a page of another origin may use the registry (`access.control.…`, as Confluent's has)."""

from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PREFLIGHT_SECONDS = 1_800
METHODS = ("GET", "POST", "HEAD")
HEADERS = ("X-Requested-With", "Content-Type", "Accept", "Origin")


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossOrigin:
    """Which origins may, and what; no origins, the default, means no page may. `*` means every origin."""

    origins: frozenset[str] = frozenset()
    methods: tuple[str, ...] = METHODS
    headers: tuple[str, ...] = HEADERS

    @classmethod
    def from_settings(cls, origins: frozenset[str], methods: frozenset[str], headers: frozenset[str]) -> "CrossOrigin":
        """What the three settings say; no methods and no headers stand for the usual ones."""
        return cls(
            origins=origins, methods=tuple(sorted(methods)) or METHODS, headers=tuple(sorted(headers)) or HEADERS
        )


class CrossOriginApp:
    """Answers preflight requests and marks the answers to others."""

    def __init__(self, app: ASGIApp, rules: Callable[[], CrossOrigin]) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = Headers(scope=scope).get("origin") if scope["type"] == "http" else None
        if origin is None or not (rules := self._rules()).origins & {"*", origin}:
            await self._app(scope, receive, send)
            return
        if scope["method"] == "OPTIONS" and "access-control-request-method" in Headers(scope=scope):
            await Response(headers=_preflight(rules, origin))(scope, receive, send)
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_marks(rules, origin))
            await send(message)

        await self._app(scope, receive, marked)


def _marks(rules: CrossOrigin, origin: str) -> dict[str, str]:
    if "*" in rules.origins:
        # Never together with credentials: any page could then use those that a browser remembers.
        return {"access-control-allow-origin": "*"}
    return {"access-control-allow-origin": origin, "access-control-allow-credentials": "true", "vary": "Origin"}


def _preflight(rules: CrossOrigin, origin: str) -> dict[str, str]:
    return {
        **_marks(rules, origin),
        "access-control-allow-methods": ",".join(rules.methods),
        "access-control-allow-headers": ",".join(rules.headers),
        "access-control-max-age": str(PREFLIGHT_SECONDS),
    }
