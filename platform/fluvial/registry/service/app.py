"""
Confluent's Schema Registry REST API over `Registry`: the list of its calls, the form of its errors, and its server.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import nullcontext

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from fluvial.http_guard import OwnSiteOnly, hosts_for
from fluvial.registry.errors import RefusedError
from fluvial.registry.model.registry import Registry
from fluvial.registry.service import handlers, owner_handlers, settings_handlers
from fluvial.registry.service.bodies import BoundedBodies
from fluvial.registry.service.cors import CrossOrigin, CrossOriginApp
from fluvial.registry.service.forwarding import Forwarder
from fluvial.registry.service.paths import PathAsSent
from fluvial.registry.service.policy import ANYONE
from fluvial.registry.service.replies import MEDIA_TYPE, Reply, media_type
from fluvial.registry.service.requests import BODY_BYTES_MAX

CONNECTIONS_MAX = 1_000
BACKLOG_MAX = 1_024

Handler = Callable[[Request], Awaitable[Response]]

ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("GET", "/", handlers.root),
    ("POST", "/", handlers.root),
    ("GET", "/subjects", handlers.list_subjects),
    ("POST", "/subjects/{subject}", handlers.look_up),
    ("DELETE", "/subjects/{subject}", handlers.delete_subject),
    ("GET", "/subjects/{subject}/metadata", handlers.latest_with_metadata),
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
    ("GET", "/schemas/guids/{guid}", handlers.schema_by_guid),
    ("GET", "/schemas/guids/{guid}/ids", handlers.ids_of_guid),
    ("POST", "/compatibility/subjects/{subject}/versions", handlers.test_compatibility),
    ("POST", "/compatibility/subjects/{subject}/versions/{version}", handlers.test_compatibility),
    ("GET", "/config", settings_handlers.get_config),
    ("PUT", "/config", settings_handlers.put_config),
    ("DELETE", "/config", settings_handlers.delete_config),
    ("GET", "/config/{subject}", settings_handlers.get_config),
    ("PUT", "/config/{subject}", settings_handlers.put_config),
    ("DELETE", "/config/{subject}", settings_handlers.delete_config),
    ("GET", "/mode", settings_handlers.get_mode),
    ("PUT", "/mode", settings_handlers.put_mode),
    ("DELETE", "/mode", settings_handlers.delete_mode),
    ("GET", "/mode/{subject}", settings_handlers.get_mode),
    ("PUT", "/mode/{subject}", settings_handlers.put_mode),
    ("DELETE", "/mode/{subject}", settings_handlers.delete_mode),
    ("GET", "/contexts", settings_handlers.list_contexts),
    ("DELETE", "/contexts/{context}", settings_handlers.delete_context),
    ("GET", "/v1/metadata/id", settings_handlers.cluster_id),
    ("GET", "/v1/metadata/version", settings_handlers.server_version),
    *owner_handlers.ROUTES,
)

WRITES = frozenset(
    {
        handlers.register,
        handlers.delete_subject,
        handlers.delete_version,
        settings_handlers.put_config,
        settings_handlers.delete_config,
        settings_handlers.put_mode,
        settings_handlers.delete_mode,
        settings_handlers.delete_context,
        owner_handlers.put_producer,
        owner_handlers.put_owned,
    }
)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError), "registered for this class only"
    headers = {"www-authenticate": 'Basic realm="schema registry"'} if error.status == 401 else None
    return Reply({"error_code": error.code, "message": str(error)}, status_code=error.status, headers=headers)


async def _not_served(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for this class only"
    message = f"HTTP {error.status_code} {error.detail}"
    return Reply(
        {"error_code": error.status_code, "message": message}, status_code=error.status_code, headers=error.headers
    )


async def _failed(request: Request, error: Exception) -> Response:
    return Reply({"error_code": 500, "message": f"Error in the registry: {type(error).__name__}"}, status_code=500)


def create_app(
    registry: Registry,
    forwarder: Forwarder | None = None,
    *,
    cluster_id: Callable[[], str] = str,
    cross_origin: Callable[[], CrossOrigin] = CrossOrigin,
    request_bytes_max: Callable[[], int] = lambda: BODY_BYTES_MAX,
) -> ASGIApp:
    """
    The ASGI application that serves an opened registry; a `forwarder` has writes done where they can be.

    `cluster_id` is the Kafka cluster's. Pages of other origins use it as `cross_origin` says. What is called is called
    at each request, so that a change takes effect.
    """
    by_path: dict[str, dict[str, Handler]] = {}
    for method, path, handler in ROUTES:
        by_path.setdefault(path, {})[method] = _signed(handler, registry) if handler in WRITES else handler
        if forwarder is not None:
            by_path[path][method] = _anywhere(handler, registry, forwarder)
    app = Starlette(
        routes=[Route(path, _by_method(calls), methods=[*calls, "OPTIONS"]) for path, calls in by_path.items()],
        exception_handlers={RefusedError: _refused, HTTPException: _not_served, Exception: _failed},
    )
    app.router.redirect_slashes = False
    app.state.registry = registry
    app.state.cluster_id = cluster_id
    app.state.request_bytes_max = request_bytes_max
    return CrossOriginApp(PathAsSent(BoundedBodies(app)), cross_origin)


def _anywhere(handler: Handler, registry: Registry, forwarder: Forwarder) -> Handler:
    """Let a call work on every node: writes go on to who writes, and what is missed is looked for once more."""
    if handler in WRITES:
        return forwarder.wrap(_signed(handler, registry), registers=handler is handlers.register)

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except RefusedError as error:
            # It may have been registered through another node a moment ago.
            if error.status != 404 or not await registry.refresh_if_possible():
                raise
        return await handler(request)

    return handle


def _signed(handler: Handler, registry: Registry) -> Handler:
    """Find out who sends a write before it is done; introducing a producer it is the handler that looks."""
    if handler is owner_handlers.put_producer:
        return handler

    async def handle(request: Request) -> Response:
        header = request.headers.get("authorization")
        if header is not None:
            try:
                request.state.principal = await registry.authenticator.principal(header)
            except RefusedError:
                # A node that only now began to write may not have heard of the producer yet.
                if not await registry.refresh_if_possible():
                    raise
                request.state.principal = await registry.authenticator.principal(header)
        else:
            request.state.principal = ANYONE
        return await handler(request)

    return handle


def _by_method(calls: Mapping[str, Handler]) -> Handler:
    allowed = ",".join([*calls, *(["HEAD"] if "GET" in calls else []), "OPTIONS"])

    async def handle(request: Request) -> Response:
        if request.method == "OPTIONS":
            return Response(headers={"allow": allowed})
        wanted = media_type(request.headers.get("accept", "*/*"))
        if wanted is None:
            raise HTTPException(406)
        response = await calls["GET" if request.method == "HEAD" else request.method](request)
        if wanted != MEDIA_TYPE and response.headers.get("content-type") == MEDIA_TYPE:
            response.headers["content-type"] = wanted
        return response

    return handle


async def serve(
    app: ASGIApp,
    host: str,
    port: int,
    *,
    started: Callable[[int], None] | None = None,
    hosts: Callable[[], Collection[str]] = frozenset,
    origins: Callable[[], Collection[str]] = frozenset,
) -> None:
    """
    Serve `app` on the running event loop until this coroutine is cancelled; the process keeps its signal handlers.

    `started` is called with the bound port once connections are accepted. `hosts` are further names under which this
    server is asked, `origins` those whose pages may ask it. Raises OSError for a port that is taken.
    """
    import uvicorn

    from fluvial.registry.service.http_protocol import BoundedProtocol

    listening = _listen(host, port)
    if started is not None:
        # The kernel takes connections from here on; they wait the milliseconds until the server looks at them.
        started(listening.getsockname()[1])
    config = uvicorn.Config(
        OwnSiteOnly(app, hosts=lambda: hosts_for(host, hosts()), origins=origins),
        http=BoundedProtocol,
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
