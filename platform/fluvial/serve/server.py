"""
The process of `fluvial serve`: its tables opened, followed and answered about until it is told to stop.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fluvial.cluster.users import ClusterUsers
from fluvial.errors import FluvialError
from fluvial.http_exposure import Exposure
from fluvial.http_server import serve
from fluvial.kafka import KafkaCluster
from fluvial.serve.app import create_app
from fluvial.serve.exposition import Metrics
from fluvial.serve.follower import Follower
from fluvial.serve.service import Limits, Service
from fluvial.serve.sign_in import signed_in_only
from fluvial.serve.sql import Statements
from fluvial.serve.warehouse import ServedWarehouse
from log_broker.core.security.listeners import TlsConfig
from log_broker.server.net.tls import TlsContext

if TYPE_CHECKING:
    from fluvial.serve.flight_sql.server import FlightSqlServer

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """
    Where requests come in; `hosts` are further names by which the server is asked. Users are those of `cluster`.

    Statements are taken by Arrow Flight SQL, too, at `flight_port`: None for nowhere.
    """

    port: int
    flight_port: int | None = None
    exposure: Exposure = field(default_factory=Exposure)
    cluster: KafkaCluster | None = None
    hosts: Collection[str] = ()


async def serve_rows(
    warehouse: ServedWarehouse,
    listening: Listening,
    *,
    preload: Sequence[str] = (),
    statements: Callable[[], Statements] | None = None,
    limits: Limits | None = None,
    started: Callable[[int], None] | None = None,
    flight_started: Callable[[int], None] | None = None,
    ready: Callable[[], None] | None = None,
) -> None:
    """
    Answer about the tables of a warehouse until cancelled; `preload` are opened before the server says it is ready.

    `statements` makes what answers SQL, which is closed with the server. `started` is called with the bound port, and
    before it `flight_started` with that of Flight SQL, `ready` when all are open. Raises OSError for a port that is
    taken and :class:`~fluvial.errors.FluvialError` for a table of `preload` that cannot be opened.
    """
    follower = Follower(warehouse)
    left = dict.fromkeys(preload)
    async with AsyncExitStack() as stack:
        stack.callback(follower.close)

        def is_ready() -> str | None:
            return f"{', '.join(left)} is being opened" if left else None

        async def open_all() -> None:
            for name in preload:
                await follower.held(warehouse.table(name))
                del left[name]
            if ready is not None:
                ready()

        sql = None if statements is None else statements()
        if sql is not None:
            stack.callback(sql.close)
        service = Service(follower, limits or Limits())
        metrics = Metrics(follower)
        app = create_app(service, metrics, statements=sql, is_ready=is_ready)
        exposure = listening.exposure
        users = None
        if exposure.asks:
            assert listening.cluster is not None, "it is known whose users are asked for"
            users = ClusterUsers(listening.cluster, about="tables")
            stack.callback(users.close)
            app = signed_in_only(app, users)
        if listening.flight_port is not None:
            flight = _flight(listening, users, service, sql, metrics)
            stack.push_async_callback(flight.close)
            if flight_started is not None:
                flight_started(flight.port)
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(follower.run())
            opening = tasks.create_task(open_all())
            serving = tasks.create_task(
                serve(
                    app,
                    exposure.host,
                    listening.port,
                    tls=_tls(exposure),
                    started=started,
                    hosts=lambda: listening.hosts,
                )
            )
            try:
                await asyncio.shield(serving)
            finally:
                follower.stop()
                for task in (following, opening, serving):
                    task.cancel()


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """
    The error in a group that is to be told.
    """
    errors = [each for each in group.exceptions if isinstance(each, FluvialError | OSError)]
    return errors[0] if errors else group.exceptions[0]


def _flight(
    listening: Listening,
    users: ClusterUsers | None,
    service: Service,
    statements: Statements | None,
    metrics: Metrics,
) -> "FlightSqlServer":
    # gRPC is loaded where it is asked for.
    from fluvial.serve.flight_sql.door import FlightDoor
    from fluvial.serve.flight_sql.server import FlightSqlServer

    assert listening.flight_port is not None, "it is asked for"
    door = FlightDoor(service, statements, metrics)
    return FlightSqlServer(door, listening.exposure, listening.flight_port, users)


def _tls(exposure: Exposure) -> TlsContext | None:
    if exposure.certificate is None:
        return None
    config = TlsConfig(location=str(exposure.certificate))
    return TlsContext(config, is_server=True, clock=asyncio.get_running_loop().time)
