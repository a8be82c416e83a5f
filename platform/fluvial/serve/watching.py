"""
The changes of one row as server-sent events (the standard's section 9.2): one for the row as it is, then one for each
version in which it is another.
"""

import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fluvial.serve.errors import NoRowError, ServeError
from fluvial.serve.service import Asked, Service
from fluvial.serve.table import ServedTable, View

EVENT_STREAM = "text/event-stream"
HEARTBEAT_S = 15.0
_NOWHERE = "null"


async def watched(
    service: Service, table: ServedTable, key: Sequence[Any], columns: Sequence[str], known: str | None = None
) -> AsyncGenerator[bytes, None]:
    """
    Events `row` with the row in JSON and `gone` with null, each with its version's tag as its id.

    Who has had the version `known` is told of the row when there is a later one. A table that cannot be read ends it,
    with an event `error`.
    """
    told: str | None = None
    while True:
        try:
            view = await service.view(table, Asked())
            now = await _now(service, view, key, columns)
        except ServeError as error:
            body = json.dumps({"error_code": error.code, "message": str(error)})
            yield f"event: error\ndata: {body}\n\n".encode()
            return
        if told is None and view.tag == known:
            told = now
        if now != told:
            told = now
            yield f"id: {view.tag}\nevent: {'gone' if now == _NOWHERE else 'row'}\ndata: {now}\n\n".encode()
        # A version that came while this was told is not waited for.
        while table.held is view and not await service.follower.changed(table, HEARTBEAT_S):
            # So that a connection that is gone is noticed.
            yield b":\n\n"
        if service.follower.is_stopping:
            return


async def _now(service: Service, view: View, key: Sequence[Any], columns: Sequence[str]) -> str:
    try:
        return (await service.row(view, key, columns)).decode()
    except NoRowError:
        return _NOWHERE
