"""
Requests as they are sent to what is served: escaped slashes stay in subjects, and `/contexts/{context}/…` is `/…`
within that context.

Below a context a subject is one of that context unless it says another, and so is a prefix of subjects, the subject
that an id is asked for, and what is set of no subject.
"""

from urllib.parse import parse_qsl, quote, unquote, urlencode

from starlette.types import ASGIApp, Receive, Scope, Send

from fluvial.registry.model import names
from fluvial.registry.model.names import ALL_CONTEXTS


class PathAsSent:
    """Routes by the path as it was sent, so that a subject may hold an escaped slash; handlers unescape their parts."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path")
        if scope["type"] == "http" and raw:
            path = raw.partition(b"?")[0].decode("latin-1").rstrip("/") or "/"
            scope = {**scope, "path": path}
            if path.startswith("/contexts/"):
                query = scope["query_string"].decode("latin-1")
                scope["path"], query = in_context(path, query)
                scope["query_string"] = query.encode("latin-1")
        await self._app(scope, receive, send)


def in_context(path: str, query: str) -> tuple[str, str]:
    """The path and query that `/contexts/{context}/…` stands for; those of a context that cannot be lead nowhere."""
    _, _, escaped, *rest = path.split("/")
    try:
        context = names.context_named(unquote(escaped))
    except ValueError:
        return "/contexts//", query
    scope = quote(names.joined(context, ""), safe=":.")
    if not rest:
        return f"/contexts/{escaped}", query
    parts: list[str] = []
    subject_is_next = False
    for part in rest:
        if subject_is_next and not _says_context(unquote(part)):
            parts.append(scope + part)
        else:
            parts.append(part)
        subject_is_next = not subject_is_next and (part == "subjects" or (len(parts) == 1 and part in _SETTINGS))
    if parts[-1] in _SETTINGS and len(parts) == 1 and scope:
        parts.append(scope)
    found = "/" + "/".join(parts)
    return found, _query_in_context(found, query, names.joined(context, ""))


_SETTINGS = frozenset({"config", "mode"})


def _query_in_context(path: str, query: str, scope: str) -> str:
    if path.startswith("/schemas/ids"):
        name = "subject"
    elif path in {"/schemas", "/subjects"}:
        name = "subjectPrefix"
    else:
        return query
    pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=100)
    given = next((value for key, value in pairs if key == name), "")
    wanted = given if _says_context(given) else scope + given
    return urlencode([*((key, value) for key, value in pairs if key != name), (name, wanted)])


def _says_context(subject: str) -> bool:
    return subject.startswith((":.", ALL_CONTEXTS))
