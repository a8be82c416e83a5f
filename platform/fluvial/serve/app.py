"""
The HTTP interface of `fluvial serve`: rows of tables by key, with what watches and measures it.

An answer is of one version of its table, which its headers name: `Fluvial-Version`, and `ETag` for asking whether there
is another. Errors are JSON as the schema registry's: `error_code` and `message`.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import unquote

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from fluvial.query.versions import Version
from fluvial.serve.bodies import body_of, hung_up, object_of
from fluvial.serve.errors import BadRequestError, BusyError, NoRowError, ServeError
from fluvial.serve.exposition import Metrics
from fluvial.serve.made_rows import MadeRows
from fluvial.serve.service import Asked, Meant, Service, no_row
from fluvial.serve.sql import Statements
from fluvial.serve.sql_door import SqlDoor
from fluvial.serve.table import Row, View
from fluvial.serve.watching import EVENT_STREAM, watched

JSON = "application/json"
PREFIX, BATCH = "/tables/", ":batch"
_OFFSETS = "fluvial-offsets"

Handler = Callable[[Request], Awaitable[Response]]


def create_app(
    service: Service,
    metrics: Metrics,
    *,
    statements: Statements | None = None,
    is_ready: Callable[[], str | None] = lambda: None,
) -> ASGIApp:
    """
    The application; `is_ready` says what keeps the server from taking requests, None for nothing.
    """
    doors = _Doors(service, MadeRows(statements), is_ready)
    sql = SqlDoor(statements, service.limits.request_bytes)
    routes = [
        Route("/tables", metrics.timed("list", doors.list_tables)),
        Route("/tables/{rest:path}", metrics.timed("row", doors.get), methods=["GET"]),
        Route("/tables/{rest:path}", metrics.timed("batch", doors.post), methods=["POST"]),
        Route("/sql", metrics.timed("sql", sql.post), methods=["POST"]),
        Route("/healthz", doors.healthz),
        Route("/readyz", doors.readyz),
        Route("/metrics", _exposed(metrics)),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={ServeError: _refused, HTTPException: _http, ClientDisconnect: _gone, Exception: _failed},
    )
    app.router.redirect_slashes = False
    return app


class _Doors:
    def __init__(self, service: Service, made_rows: MadeRows, is_ready: Callable[[], str | None]) -> None:
        self._service = service
        self._made_rows = made_rows
        self._is_ready = is_ready

    async def list_tables(self, request: Request) -> Response:
        names = await self._service.follower.in_thread(lambda: self._service.names)
        return JSONResponse({"tables": names})

    async def get(self, request: Request) -> Response:
        name, parts = _path(request)
        if parts is None:
            asked = _asked(request)
            if asked.fresh:
                raise BadRequestError("?fresh= is of a row: /tables/NAME/KEY?fresh=1")
            view = await self._service.view(self._service.table(name), asked)
            return _same(request, view) or _answer(view, self._service.described(view))
        if EVENT_STREAM in request.headers.get("accept", ""):
            return await self._watch(request, name, parts)
        asked = _asked(request)
        meant = await self._service.meant(self._service.table(name), asked)
        view = meant.view
        key = view.key.of_path(parts)
        if meant.made:
            return await self._made_row(request, meant, key, asked)
        same = _same(request, view)
        if same is not None:
            return same
        try:
            return _answer(view, await self._service.row(view, key, asked.columns))
        except NoRowError as error:
            # Which version lacks it is a part of the answer.
            return _answer(view, _error_body(error), status=error.status)

    async def _made_row(self, request: Request, meant: Meant, key: Sequence[Any], asked: Asked) -> Response:
        (row,), version = await self._made(request, meant, [key], asked)
        headers = _up_to(version)
        if row is None:
            when = f"up to {headers[_OFFSETS]}" if _OFFSETS in headers else f"at version {version.version}"
            error = no_row(meant.view, key, when)
            return Response(_error_body(error), error.status, headers, media_type=JSON)
        return Response(self._service.shown(meant.view, row), 200, headers, media_type=JSON)

    async def _made(
        self, request: Request, meant: Meant, keys: Sequence[Sequence[Any]], asked: Asked
    ) -> tuple[list[Row | None], Version]:
        return await self._made_rows.rows(meant, keys, asked, lambda: hung_up(request))

    async def post(self, request: Request) -> Response:
        name, parts = _path(request)
        if parts is not None or not name.endswith(BATCH):
            raise HTTPException(405, headers={"allow": "GET"})
        body = object_of(await body_of(request, self._service.limits.request_bytes))
        keys = body.get("keys")
        if not isinstance(keys, list):
            raise BadRequestError('the body is {"keys": […]}')
        asked = Asked.of_json(body)
        meant = await self._service.meant(self._service.table(name.removesuffix(BATCH)), asked)
        view = meant.view
        if meant.made:
            rows, version = await self._made(request, meant, self._service.keys_of(view, keys), asked)
            listed = self._service.listed(view, rows, version.version)
            return Response(listed, 200, _up_to(version), media_type=JSON)
        return _answer(view, await self._service.rows(view, keys, asked.columns))

    async def healthz(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(self, request: Request) -> Response:
        reason = self._is_ready()
        if reason is not None:
            return JSONResponse({"error_code": 50303, "message": reason}, 503)
        return JSONResponse({"status": "ready", "failing": self._service.follower.failures})

    async def _watch(self, request: Request, name: str, parts: list[str]) -> Response:
        asked = _asked(request)
        if asked.version is not None or asked.at or asked.wait_version is not None or asked.fresh:
            raise BadRequestError("what is watched is the newest version")
        service = self._service
        table = service.table(name)
        view = await service.view(table, asked)
        key = view.key.of_path(parts)
        columns = view.columns(asked.columns)
        if service.watchers >= service.limits.watchers:
            raise BusyError(f"{service.watchers} clients watch rows already; try again, or ask with ?wait_version=")

        async def events() -> AsyncIterator[bytes]:
            service.watchers += 1
            try:
                async with aclosing(watched(service, table, key, columns, _last_event(request))) as found:
                    async for event in found:
                        yield event
            finally:
                service.watchers -= 1

        return StreamingResponse(events(), media_type=EVENT_STREAM, headers={"cache-control": "no-store"})


def _path(request: Request) -> tuple[str, list[str] | None]:
    """The table's name and the parts of the key behind it as they were sent; None where there is no key."""
    raw = request.scope.get("raw_path") or request.scope["path"].encode()
    sent = raw.partition(b"?")[0].decode("latin-1").removeprefix(PREFIX)
    name, slash, key = sent.partition("/")
    return unquote(name), key.split("/") if slash else None


def _asked(request: Request) -> Asked:
    given: dict[str, list[str]] = {}
    for name, value in request.query_params.multi_items():
        given.setdefault(name, []).append(value)
    return Asked.of(given)


def _answer(view: View, body: bytes, *, status: int = 200) -> Response:
    headers = {"etag": _etag(view), "fluvial-version": str(view.version), "cache-control": "no-cache"}
    return Response(body, status, headers, media_type=JSON)


def _up_to(version: Version) -> dict[str, str]:
    """The headers of an answer with what the log holds behind a version."""
    headers = {"fluvial-version": str(version.version), "cache-control": "no-store"}
    offsets = " ".join(map(str, version.places))
    return headers | {_OFFSETS: offsets} if offsets else headers


def _etag(view: View) -> str:
    return f'"{view.tag}"'


def _same(request: Request, view: View) -> Response | None:
    """The answer to who has this version already."""
    known = request.headers.get("if-none-match")
    if known is None or _etag(view) not in (each.strip().removeprefix("W/") for each in known.split(",")):
        return None
    return Response(status_code=304, headers={"etag": _etag(view), "fluvial-version": str(view.version)})


def _last_event(request: Request) -> str | None:
    return request.headers.get("last-event-id")


def _error_body(error: ServeError) -> bytes:
    return json.dumps({"error_code": error.code, "message": str(error)}, ensure_ascii=False).encode()


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServeError), "it is registered for these"
    headers = {"retry-after": "1"} if error.status == 503 else None
    return Response(_error_body(error), error.status, headers, media_type=JSON)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it is registered for these"
    message = "there is nothing here: /tables, /tables/NAME/KEY, /sql, /healthz, /readyz, /metrics"
    if error.status_code == 405:
        message = f"{request.method} is not for this path"
    return JSONResponse({"error_code": error.status_code, "message": message}, error.status_code, error.headers)


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=400)


async def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse({"error_code": 50001, "message": "the server has failed; its log says where"}, 500)


def _exposed(metrics: Metrics) -> Handler:
    async def exposed(request: Request) -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return exposed
