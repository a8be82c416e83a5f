"""How much of the bodies of requests is held at once, however many clients send them."""

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fluvial.registry import errors

FREE_BYTES = 64 * 1024
"""What each request may hold of its body in any case: large ones must not keep the usual ones out."""

SHARED_BYTES_MAX = 32 * 1024 * 1024
"""What all requests together may hold beyond that, from when it comes until they are answered."""


class BoundedBodies:
    """Turns down, with status 503, a body for which there is no room now."""

    def __init__(self, app: ASGIApp, *, shared_bytes_max: Callable[[], int] = lambda: SHARED_BYTES_MAX) -> None:
        self._app = app
        self._shared_bytes_max = shared_bytes_max
        self.held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        came = held = 0

        async def counted() -> Message:
            nonlocal came, held
            message = await receive()
            came += len(message.get("body", b""))
            more = max(0, came - FREE_BYTES) - held
            if more > 0:
                if self.held + more > self._shared_bytes_max():
                    raise errors.busy("The registry holds as many large requests as it can; try again")
                self.held += more
                held += more
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            self.held -= held
