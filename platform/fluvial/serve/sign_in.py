"""
Who may ask a server that others reach: users of the cluster, by HTTP Basic, who may DESCRIBE the cluster.
"""

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from fluvial.cluster.users import ClusterUsers
from fluvial.http_sign_in import PRINCIPAL, SignedInOnly
from log_broker.core.security.acls import Operation

REALM = "fluvial"
OPEN = frozenset({"/healthz"})
"""What says nothing of the tables is answered to everybody."""


def signed_in_only(app: ASGIApp, users: ClusterUsers) -> ASGIApp:
    """
    What lets requests of such users through to `app`, and answers the others with status 401 or 403.
    """
    return SignedInOnly(_MayDescribe(app, users), users, open_paths=OPEN, realm=REALM)


class _MayDescribe:
    def __init__(self, app: ASGIApp, users: ClusterUsers) -> None:
        self._app = app
        self._users = users

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN:
            principal = scope["state"][PRINCIPAL]
            if not self._users.may(principal, Operation.DESCRIBE):
                message = f"{principal} may not DESCRIBE the cluster, which its tables ask for"
                await JSONResponse({"error_code": 403, "message": message}, 403)(scope, receive, send)
                return
        await self._app(scope, receive, send)
