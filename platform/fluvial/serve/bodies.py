"""
The bodies of requests, within bounds.
"""

import json
from typing import Any

from starlette.requests import Request

from fluvial.serve.errors import BadRequestError, TooLargeError


async def body_of(request: Request, bytes_max: int) -> bytes:
    """
    The body of a request. Raises :class:`TooLargeError`.
    """
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > bytes_max:
            raise TooLargeError(f"a request has at most {bytes_max} bytes")
        parts.append(part)
    return b"".join(parts)


async def hung_up(request: Request) -> None:
    """
    Return when whoever has sent a request, which was read, is gone.
    """
    while (await request.receive())["type"] != "http.disconnect":
        pass


def object_of(body: bytes) -> dict[str, Any]:
    """
    The JSON object that a body is. Raises :class:`BadRequestError`.
    """
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequestError("the body is not JSON") from error
    if not isinstance(found, dict):
        raise BadRequestError("the body is not a JSON object")
    return found
