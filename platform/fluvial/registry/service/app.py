"""
Confluent's Schema Registry REST API over `Registry`: the list of its calls, and the form of its errors.
"""

from collections.abc import Callable, Mapping

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

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
from fluvial.registry.service.rights import Asked, Handler, demand
from fluvial.registry.service.security import RegistrySecurity

ROUTES: tuple[tuple[str, str, Handler, Asked], ...] = (
    ("GET", "/", handlers.root, Asked.NOTHING),
    ("POST", "/", handlers.root, Asked.NOTHING),
    ("GET", "/subjects", handlers.list_subjects, Asked.INSIDE),
    ("POST", "/subjects/{subject}", handlers.look_up, Asked.READ),
    ("DELETE", "/subjects/{subject}", handlers.delete_subject, Asked.DELETE),
    ("GET", "/subjects/{subject}/metadata", handlers.latest_with_metadata, Asked.READ),
    ("GET", "/subjects/{subject}/versions", handlers.list_versions, Asked.READ),
    ("POST", "/subjects/{subject}/versions", handlers.register, Asked.INSIDE),
    ("GET", "/subjects/{subject}/versions/{version}", handlers.get_version, Asked.INSIDE),
    ("DELETE", "/subjects/{subject}/versions/{version}", handlers.delete_version, Asked.DELETE),
    ("GET", "/subjects/{subject}/versions/{version}/schema", handlers.get_version_schema, Asked.INSIDE),
    ("GET", "/subjects/{subject}/versions/{version}/referencedby", handlers.referenced_by, Asked.INSIDE),
    ("GET", "/schemas", handlers.list_schemas, Asked.INSIDE),
    ("GET", "/schemas/types", handlers.schema_types, Asked.NOTHING),
    ("GET", "/schemas/ids/{id}", handlers.schema_by_id, Asked.INSIDE),
    ("GET", "/schemas/ids/{id}/schema", handlers.schema_text_by_id, Asked.INSIDE),
    ("GET", "/schemas/ids/{id}/subjects", handlers.subjects_of_id, Asked.INSIDE),
    ("GET", "/schemas/ids/{id}/versions", handlers.versions_of_id, Asked.INSIDE),
    ("GET", "/schemas/guids/{guid}", handlers.schema_by_guid, Asked.INSIDE),
    ("GET", "/schemas/guids/{guid}/ids", handlers.ids_of_guid, Asked.INSIDE),
    ("POST", "/compatibility/subjects/{subject}/versions", handlers.test_compatibility, Asked.READ),
    ("POST", "/compatibility/subjects/{subject}/versions/{version}", handlers.test_compatibility, Asked.READ),
    ("GET", "/config", settings_handlers.get_config, Asked.READ_SETTINGS),
    ("PUT", "/config", settings_handlers.put_config, Asked.WRITE_SETTINGS),
    ("DELETE", "/config", settings_handlers.delete_config, Asked.WRITE_SETTINGS),
    ("GET", "/config/{subject}", settings_handlers.get_config, Asked.READ_SETTINGS),
    ("PUT", "/config/{subject}", settings_handlers.put_config, Asked.WRITE_SETTINGS),
    ("DELETE", "/config/{subject}", settings_handlers.delete_config, Asked.WRITE_SETTINGS),
    ("GET", "/mode", settings_handlers.get_mode, Asked.READ_SETTINGS),
    ("PUT", "/mode", settings_handlers.put_mode, Asked.WRITE_SETTINGS),
    ("DELETE", "/mode", settings_handlers.delete_mode, Asked.WRITE_SETTINGS),
    ("GET", "/mode/{subject}", settings_handlers.get_mode, Asked.READ_SETTINGS),
    ("PUT", "/mode/{subject}", settings_handlers.put_mode, Asked.WRITE_SETTINGS),
    ("DELETE", "/mode/{subject}", settings_handlers.delete_mode, Asked.WRITE_SETTINGS),
    ("GET", "/contexts", settings_handlers.list_contexts, Asked.NOTHING),
    ("DELETE", "/contexts/{context}", settings_handlers.delete_context, Asked.WRITE_SETTINGS),
    ("GET", "/v1/metadata/id", settings_handlers.cluster_id, Asked.NOTHING),
    ("GET", "/v1/metadata/version", settings_handlers.server_version, Asked.NOTHING),
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
    security: RegistrySecurity | None = None,
) -> ASGIApp:
    """
    The ASGI application that serves an opened registry; a `forwarder` has writes done where they can be.

    `cluster_id` is the Kafka cluster's. Pages of other origins use it as `cross_origin` says. What is called is called
    at each request, so that a change takes effect. With `security` whoever asks is a user of the cluster.
    """
    by_path: dict[str, dict[str, Handler]] = {}
    for method, path, handler, asked in ROUTES:
        call = _signed(handler, registry) if handler in WRITES and security is None else handler
        if forwarder is not None:
            call = _anywhere(handler, call, registry, forwarder)
        by_path.setdefault(path, {})[method] = call if security is None else _guarded(call, asked)
    app = Starlette(
        routes=[Route(path, _by_method(calls), methods=[*calls, "OPTIONS"]) for path, calls in by_path.items()],
        exception_handlers={RefusedError: _refused, HTTPException: _not_served, Exception: _failed},
    )
    app.router.redirect_slashes = False
    app.state.registry = registry
    app.state.cluster_id = cluster_id
    app.state.request_bytes_max = request_bytes_max
    app.state.is_secured = security is not None
    inner: ASGIApp = PathAsSent(BoundedBodies(app))
    if security is not None:
        inner = security.before(inner, registry.authenticator)
    return CrossOriginApp(inner, cross_origin)


def _guarded(handler: Handler, asked: Asked) -> Handler:
    """Look at the rights that a call asks for before it is done, here or at another node."""
    if asked in {Asked.NOTHING, Asked.INSIDE}:
        return handler

    async def handle(request: Request) -> Response:
        demand(request, asked, handlers.subject_asked(request))
        return await handler(request)

    return handle


def _anywhere(handler: Handler, call: Handler, registry: Registry, forwarder: Forwarder) -> Handler:
    """Let a call work on every node: writes go on to who writes, and what is missed is looked for once more."""
    if handler in WRITES:
        return forwarder.wrap(call, registers=handler is handlers.register)

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
