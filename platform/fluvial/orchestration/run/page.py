"""
Dagster's page as `fluvial ui` serves it: `dagster dev`, with a check before its web server.

    python -m fluvial.orchestration.run.page dev -m shop.definitions --host 127.0.0.1 --port 3000

The page has no login and starts runs for whoever asks, also by a simple POST of another site's page. Dagster has no
place to put a check, so the module that it starts its web server as is replaced by this one.
"""

import os
import sys
from importlib import import_module
from typing import Any

ALLOWED_HOSTS = "FLUVIAL_UI_ALLOWED_HOSTS"
"""The variable with further names under which the page is asked, with commas between."""

_WEBSERVER = "dagster_webserver"
_OURS = "serve"


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
        return [parts[0], "-m", "fluvial.orchestration.run.page", _OURS, *parts[3:]]
    if any(_WEBSERVER in each for each in parts):
        raise RuntimeError(f"this Dagster starts its web server in another way, without our check: {parts[:4]}")
    return parts


def _serve() -> None:
    from dagster_webserver.webserver import DagsterWebserver
    from starlette.middleware import Middleware

    from fluvial.http_guard import OwnSiteOnly

    hosts = frozenset(filter(None, os.environ.get(ALLOWED_HOSTS, "").lower().split(",")))
    # What a link asks of /graphql would be done as well as shown.
    check = Middleware(OwnSiteOnly, hosts=lambda: hosts, links=lambda path: not path.rstrip("/").endswith("/graphql"))
    cli: Any = import_module("dagster_webserver.cli")
    theirs = DagsterWebserver.build_middleware
    DagsterWebserver.build_middleware = lambda self: [check, *theirs(self)]  # type: ignore[method-assign]
    cli.main()


if __name__ == "__main__":
    main()
