"""
`POST /sql`: a statement as text, or as JSON with the values of its parameters, and its answer in the format asked for.
"""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from fluvial.errors import FluvialError
from fluvial.query.answers import Format
from fluvial.query.versions import At
from fluvial.query.words import bound, parameters_of, used_parameters
from fluvial.serve.bodies import body_of, hung_up, object_of
from fluvial.serve.errors import BadRequestError, RefusedStatementError
from fluvial.serve.service import is_set
from fluvial.serve.sql import WIDTH, Asked, Statements
from fluvial.serve.statements import CHARACTERS_MAX

MEDIA_TYPES: Mapping[Format, str] = {
    Format.JSON: "application/json",
    Format.CSV: "text/csv; charset=utf-8",
    Format.NDJSON: "application/x-ndjson",
    Format.ARROW: "application/vnd.apache.arrow.file",
    Format.ARROW_STREAM: "application/vnd.apache.arrow.stream",
    Format.PARQUET: "application/vnd.apache.parquet",
    Format.MARKDOWN: "text/markdown; charset=utf-8",
    Format.TABLE: "text/plain; charset=utf-8",
}
_FIELDS = ("sql", "params", "at", "fresh", "fresh_at_least", "format", "width")
_WIDTHS = range(20, 100_001)


class SqlDoor:
    """
    Takes requests for statements; None answers none.
    """

    def __init__(self, statements: Statements | None, request_bytes_max: int) -> None:
        self._statements = statements
        self._request_bytes_max = request_bytes_max

    async def post(self, request: Request) -> Response:
        """
        Answer a request. Raises :class:`~fluvial.serve.errors.ServeError`.
        """
        if self._statements is None:
            raise RefusedStatementError(
                "this server answers no statements: Sail is not installed, or no local warehouse"
            )
        asked = asked_of(request, await body_of(request, self._request_bytes_max))

        body, told = await self._statements.answer(asked, lambda: hung_up(request))
        headers = {
            "fluvial-engine": str(told.engine),
            "fluvial-versions": ", ".join(f"{each.table}={each.version}" for each in told.versions),
            "fluvial-told": str(told),
            "cache-control": "no-store",
        }
        return Response(body, 200, headers, media_type=MEDIA_TYPES[asked.format])


def asked_of(request: Request, body: bytes) -> Asked:
    """
    What a request asks for. Raises :class:`BadRequestError`.
    """
    is_json = request.headers.get("content-type", "").partition(";")[0].strip() == "application/json"
    given: dict[str, Any] = object_of(body) if is_json else {"sql": _text(body)}
    unknown = next((name for name in given if name not in _FIELDS), None)
    if unknown is not None:
        raise BadRequestError(f"{unknown[:100]!r} is not known: there are {', '.join(_FIELDS)}")
    statement, params, at = given.get("sql"), given.get("params", {}), given.get("at", [])
    if not isinstance(statement, str) or not statement.strip():
        raise BadRequestError("the statement is missing: send it as text, or as JSON in the field sql")
    if not isinstance(params, dict) or not all(isinstance(value, str) for value in params.values()):
        raise BadRequestError('params is an object of texts such as {"city": "Bern", "n:int": "7"}')
    fresh, at_least = given.get("fresh", False), given.get("fresh_at_least", [])
    for name, places in (("at", at), ("fresh_at_least", at_least)):
        if not isinstance(places, list) or not all(isinstance(each, str) for each in places):
            raise BadRequestError(f'{name} is a list such as ["orders:0=1234"]')
    if not isinstance(fresh, bool):
        raise BadRequestError("fresh is true or false")
    query = request.query_params
    at, at_least = [*at, *query.getlist("at")], [*at_least, *query.getlist("fresh_at_least")]
    is_fresh = fresh or is_set(query.getlist("fresh")) or bool(at_least)
    if at and is_fresh:
        raise BadRequestError("at and fresh: tables are read as of an offset or up to the newest, not both")
    width = given.get("width", WIDTH)
    if not isinstance(width, int) or width not in _WIDTHS:
        raise BadRequestError(f"width is a number of characters, {_WIDTHS[0]} to {_WIDTHS[-1]}")
    try:
        parameters = parameters_of(params)
        unused = parameters.keys() - used_parameters(statement)
        if unused:
            raise BadRequestError(f"the statement has no parameter :{min(unused)[:100]}")
        return Asked(
            statement=bound(statement, parameters, characters_max=CHARACTERS_MAX),
            format=_format(request, given.get("format")),
            width=width,
            places=At.of(at),
            fresh=is_fresh,
            at_least=At.of(at_least, "fresh_at_least"),
        )
    except FluvialError as error:
        raise BadRequestError(str(error)) from error


def _format(request: Request, named: Any) -> Format:
    named = request.query_params.get("format", named)
    if named is not None:
        if named not in [*Format]:
            raise BadRequestError(f"format is one of {', '.join(Format)}")
        return Format(named)
    accepted = [each.partition(";")[0].strip() for each in request.headers.get("accept", "").split(",")]
    kinds = {kind.partition(";")[0]: fmt for fmt, kind in MEDIA_TYPES.items()}
    return next((kinds[each] for each in accepted if each in kinds), Format.JSON)


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise BadRequestError("the statement is not text in UTF-8") from error
