"""
S3 on this machine, by moto: what Amazon answers, its conditional writes included.

It is run by the Python of moto's own environment, and says its port; `--unconditional` makes it a store that does not
know If-None-Match, as older ones are.
"""

import sys
from collections.abc import Callable, Iterable
from typing import Any

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


def without_conditions(application: Application) -> Application:
    """Serve requests as if none had a condition."""

    def called(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        environ.pop("HTTP_IF_NONE_MATCH", None)
        return application(environ, start_response)

    return called


def main() -> None:
    """Serve until killed."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    application: Application = DomainDispatcherApplication(create_backend_app)
    if "--unconditional" in sys.argv:
        application = without_conditions(application)
    server = make_server("127.0.0.1", 0, application, threaded=True)
    print(server.port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
