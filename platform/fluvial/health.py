"""
`/healthz` and `/readyz` beside what else an HTTP server of a node answers, for Kubernetes and load balancers.

`/healthz` says that the node's event loop runs; who gets no answer restarts it. `/readyz` says whether it takes part in
the cluster: status 503 with a reason when the controller does not know it as alive, or has not been heard of for so
long that the node would not acknowledge what it leads. Restarting such a node helps nobody.
"""

from typing import Protocol

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

HEALTHY_PATH, READY_PATH = "/healthz", "/readyz"


class _Image(Protocol):
    def is_alive(self, node_id: int) -> bool: ...


class _Lease(Protocol):
    @property
    def valid(self) -> bool: ...


class _Config(Protocol):
    @property
    def node_id(self) -> int: ...


class Probed(Protocol):
    """What the answers are read from: a node that has started."""

    @property
    def static_config(self) -> _Config: ...

    @property
    def cluster(self) -> _Image: ...

    @property
    def lease(self) -> _Lease: ...


def not_ready_because(node: Probed) -> str | None:
    """Return why clients should not be sent to a node; None when it serves."""
    if not node.cluster.is_alive(node.static_config.node_id):
        return "the controller has fenced this node"
    if not node.lease.valid:
        return "the controller has answered no heartbeat of this node for too long"
    return None


class WithHealth:
    """Answers the two paths, and gives every other request to `app`."""

    def __init__(self, app: ASGIApp, node: Probed) -> None:
        self._app = app
        self._node = node

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path")
        if scope["type"] != "http" or path not in (HEALTHY_PATH, READY_PATH):
            await self._app(scope, receive, send)
            return
        reason = not_ready_because(self._node) if path == READY_PATH else None
        response = PlainTextResponse(f"{reason or 'ok'}\n", status_code=503 if reason else 200)
        await response(scope, receive, send)
