"""
Confluent's Schema Registry REST API over `Registry`: the list of its calls, the form of its errors, and its server.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fluvial.registry import handlers
from fluvial.registry.errors import RefusedError
from fluvial.registry.forwarding import Forwarder
from fluvial.registry.handlers import Reply
from fluvial.registry.registry import Registry

CONNECTIONS_MAX = 1_000
BACKLOG_MAX = 1_024

Handler = Callable[[Request], Awaitable[Response]]

ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("GET", "/", handlers.root),
    ("GET", "/subjects", handlers.list_subjects),
    ("POST", "/subjects/{subject}", handlers.look_up),
    ("DELETE", "/subjects/{subject}", handlers.delete_subject),
    ("GET", "/subjects/{subject}/versions", handlers.list_versions),
    ("POST", "/subjects/{subject}/versions", handlers.register),
    ("GET", "/subjects/{subject}/versions/{version}", handlers.get_version),
    ("DELETE", "/subjects/{subject}/versions/{version}", handlers.delete_version),
    ("GET", "/subjects/{subject}/versions/{version}/schema", handlers.get_version_schema),
    ("GET", "/subjects/{subject}/versions/{version}/referencedby", handlers.referenced_by),
    ("GET", "/schemas", handlers.list_schemas),
    ("GET", "/schemas/types", handlers.schema_types),
    ("GET", "/schemas/ids/{id}", handlers.schema_by_id),
    ("GET", "/schemas/ids/{id}/schema", handlers.schema_text_by_id),
    ("GET", "/schemas/ids/{id}/subjects", handlers.subjects_of_id),
    ("GET", "/schemas/ids/{id}/versions", handlers.versions_of_id),
    ("POST", "/compatibility/subjects/{subject}/versions", handlers.test_compatibility),
    ("POST", "/compatibility/subjects/{subject}/versions/{version}", handlers.test_compatibility),
    ("GET", "/config", handlers.get_config),
    ("PUT", "/config", handlers.put_config),
    ("DELETE", "/config", handlers.delete_config),
    ("GET", "/config/{subject}", handlers.get_config),
    ("PUT", "/config/{subject}", handlers.put_config),
    ("DELETE", "/config/{subject}", handlers.delete_config),
    ("GET", "/mode", handlers.get_mode),
    ("PUT", "/mode", handlers.put_mode),
    ("DELETE", "/mode", handlers.delete_mode),
    ("GET", "/mode/{subject}", handlers.get_mode),
    ("PUT", "/mode/{subject}", handlers.put_mode),
    ("DELETE", "/mode/{subject}", handlers.delete_mode),
    ("GET", "/contexts", handlers.contexts),
    ("GET", "/v1/metadata/version", handlers.server_version),
)

WRITES = frozenset(
    {
        handlers.register,
        handlers.delete_subject,
        handlers.delete_version,
        handlers.put_config,
        handlers.delete_config,
        handlers.put_mode,
        handlers.delete_mode,
    }
)


class _PathAsSent:
    """Routes by the path as it was sent, so that a subject may hold an escaped slash; handlers unescape their parts."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path")
        if scope["type"] == "http" and raw:
            path = raw.partition(b"?")[0].decode("latin-1")
            scope = {**scope, "path": path.rstrip("/") or "/"}
        await self._app(scope, receive, send)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError), "registered for this class only"
    return Reply({"error_code": error.code, "message": str(error)}, status_code=error.status)


async def _not_served(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for this class only"
    message = f"HTTP {error.status_code} {error.detail}"
    return Reply(
        {"error_code": error.status_code, "message": message}, status_code=error.status_code, headers=error.headers
    )


async def _failed(request: Request, error: Exception) -> Response:
    return Reply({"error_code": 50001, "message": f"Error in the registry: {type(error).__name__}"}, status_code=500)


def create_app(registry: Registry, forwarder: Forwarder | None = None) -> ASGIApp:
    """The ASGI application that serves an opened registry; a `forwarder` has writes done where they can be."""
    by_path: dict[str, dict[str, Handler]] = {}
    for method, path, handler in ROUTES:
        by_path.setdefault(path, {})[method] = handler if forwarder is None else _anywhere(handler, registry, forwarder)
    app = Starlette(
        routes=[Route(path, _by_method(calls), methods=list(calls)) for path, calls in by_path.items()],
        exception_handlers={RefusedError: _refused, HTTPException: _not_served, Exception: _failed},
    )
    app.router.redirect_slashes = False
    app.state.registry = registry
    return _PathAsSent(app)


def _anywhere(handler: Handler, registry: Registry, forwarder: Forwarder) -> Handler:
    """Let a call work on every node: writes go on to who writes, and what is missed is looked for once more."""
    if handler in WRITES:
        return forwarder.wrap(handler)

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except RefusedError as error:
            # It may have been registered through another node a moment ago.
            if error.status != 404 or not await registry.refresh_if_possible():
                raise
        return await handler(request)

    return handle


def _by_method(calls: Mapping[str, Handler]) -> Handler:
    async def handle(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await calls[method](request)

    return handle


async def serve(app: ASGIApp, host: str, port: int, *, started: Callable[[int], None] | None = None) -> None:
    """
    Serve `app` on the running event loop until this coroutine is cancelled; the process keeps its signal handlers.

    `started` is called with the bound port once connections are accepted. Raises OSError for a port that is taken.
    """
    import uvicorn

    listening = _listen(host, port)
    if started is not None:
        # The kernel takes connections from here on; they wait the milliseconds until the server looks at them.
        started(listening.getsockname()[1])
    config = uvicorn.Config(
        app,
        http="auto",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    # uvicorn would take SIGINT and SIGTERM for itself; the process that embeds us decides what they mean.
    server.capture_signals = nullcontext  # type: ignore[method-assign,assignment]
    task = asyncio.create_task(server.serve(sockets=[listening]), name="registry-http")
    try:
        await asyncio.shield(task)
    finally:
        server.should_exit = True
        await asyncio.gather(task, return_exceptions=True)
        listening.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, because asyncio sets TCP_NODELAY only then; without it each reply waits 40 ms for the client's ack.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG_MAX)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening
