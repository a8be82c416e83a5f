"""
Dagster's page as `fluvial ui` serves it: `dagster dev`, with checks before its web server.

    python -m fluvial.dagster_page dev -m shop.definitions --host 127.0.0.1 --port 3000

The page has no login and starts runs for whoever asks, also by a simple POST of another site's page. Dagster has no
place to put a check, so the module that it starts its web server as is replaced by this one. What it checks says the
`Exposure` in its environment: always which site asks; which user of the cluster, where others reach it.
"""

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fluvial.http_exposure import Exposure
from fluvial.http_guard import OwnSiteOnly, hosts_for

if TYPE_CHECKING:
    from starlette.middleware import Middleware
    from starlette.types import ASGIApp, Receive, Scope, Send

    from fluvial.cluster.users import ClusterUsers

ALLOWED_HOSTS = "FLUVIAL_UI_ALLOWED_HOSTS"
"""The variable with further names under which the page is asked, with commas between."""

ABOUT = "Dagster's page"
REALM = "fluvial"

_WEBSERVER = "dagster_webserver"
_OURS = "serve"

Make = Callable[[Any, Any], Any]


def main() -> None:
    """Run `dagster` with the arguments, or as its child the web server."""
    if sys.argv[1:2] == [_OURS]:
        del sys.argv[1]
        _serve()
    else:
        _start()


def _start() -> None:
    cli: Any = import_module("dagster._cli")
    dev: Any = import_module("dagster._cli.dev")
    start = dev.open_ipc_subprocess
    dev.open_ipc_subprocess = lambda parts, **named: start(_guarded(parts), **named)
    cli.main()


def _guarded(parts: list[str]) -> list[str]:
    """The command of a child of `dagster dev`, with ours in place of the web server's."""
    if parts[1:3] == ["-m", _WEBSERVER]:
        return [parts[0], "-m", "fluvial.dagster_page", _OURS, *parts[3:]]
    if any(_WEBSERVER in each for each in parts):
        raise RuntimeError(f"this Dagster starts its web server in another way, without our check: {parts[:4]}")
    return parts


def _serve() -> None:
    from dagster_webserver.webserver import DagsterWebserver
    from starlette.middleware import Middleware

    exposure = Exposure.from_environment(os.environ)
    checks = [_own_site_only(exposure)]
    cli: Any = import_module("dagster_webserver.cli")
    if exposure.asks:
        from fluvial.cluster.users import ClusterUsers
        from fluvial.config import load_settings
        from fluvial.http_sign_in import SignedInOnly

        users = ClusterUsers(load_settings().cluster, about=ABOUT)
        checks += [Middleware(SignedInOnly, users, realm=REALM), Middleware(MayLook, users)]
        make: Make = DagsterWebserver._make_request_context
        DagsterWebserver._make_request_context = may_act(make, users)  # type: ignore[method-assign, assignment]
    if exposure != Exposure():
        _replace_uvicorn(cli, exposure.certificate)
    theirs = DagsterWebserver.build_middleware
    DagsterWebserver.build_middleware = lambda self: [*checks, *theirs(self)]  # type: ignore[method-assign]
    cli.main()


def _own_site_only(exposure: Exposure) -> "Middleware":
    from starlette.middleware import Middleware

    hosts = frozenset(filter(None, os.environ.get(ALLOWED_HOSTS, "").lower().split(",")))
    # What a link asks of /graphql would be done as well as shown.
    return Middleware(
        OwnSiteOnly,
        hosts=lambda: hosts_for(exposure.host, hosts),
        links=lambda path: not path.rstrip("/").endswith("/graphql"),
    )


class MayLook:
    """Lets those pass who may DESCRIBE the cluster, as with its metrics; each has signed in before."""

    def __init__(self, app: "ASGIApp", users: "ClusterUsers") -> None:
        self._app = app
        self._users = users

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        from starlette.responses import JSONResponse

        from fluvial.http_sign_in import PRINCIPAL
        from log_broker.core.security.acls import Operation

        if scope["type"] in {"http", "websocket"}:
            principal = scope["state"][PRINCIPAL]
            if not self._users.may(principal, Operation.DESCRIBE):
                message = f"{principal} may not DESCRIBE the cluster, which its page asks for"
                await JSONResponse({"error_code": 403, "message": message}, 403)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def may_act(make: Make, users: "ClusterUsers") -> Make:
    """
    Return what makes the context of a request: as `make` does for who may ALTER the cluster, and read-only for others.

    Runs are started as the user of this process, and may do what that one may.
    """
    from fluvial.http_sign_in import PRINCIPAL
    from log_broker.core.security.acls import Operation

    def made(self: Any, connection: Any) -> Any:
        context = make(self, connection)
        if not users.may(connection.scope["state"][PRINCIPAL], Operation.ALTER):
            context._read_only = True
            if not context.read_only:
                raise RuntimeError("this Dagster keeps in another way what is read-only")
        return context

    return made


def _replace_uvicorn(cli: Any, certificate: Path | None) -> None:
    """Have Dagster's web server run by a server with our bounds, and with a certificate if there is one."""
    import uvicorn

    if getattr(cli, "uvicorn", None) is not uvicorn or not hasattr(cli.uvicorn, "run"):
        raise RuntimeError("this Dagster serves its page in another way, without our certificate")

    def run(app: "ASGIApp", *, host: str, port: int, log_level: str) -> None:
        _run(app, host, port, log_level, certificate)

    cli.uvicorn = SimpleNamespace(run=run)


def _run(app: "ASGIApp", host: str, port: int, log_level: str, certificate: Path | None) -> None:
    import uvicorn

    from fluvial.http_protocol import BoundedProtocol
    from fluvial.http_server import CONNECTIONS_MAX, listen, server_of, tls_of

    tls = None if certificate is None else tls_of(certificate, time.monotonic)
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        log_level=log_level,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=1,
    )
    server = server_of(config, tls)
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listen(host, port)])


if __name__ == "__main__":
    main()
