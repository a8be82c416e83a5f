"""`fluvial schema serve`: the schema registry beside a Kafka cluster that has none."""

import asyncio
import logging
import signal
from contextlib import AsyncExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fluvial.cli import terminal
from fluvial.cli.options import AllowedHosts, Certificate, with_cluster
from fluvial.config import Settings
from fluvial.errors import FluvialError
from fluvial.local.state import HOST, OPEN_TO_THE_NETWORK, REGISTRY_PORT_DEFAULT, is_loopback

if TYPE_CHECKING:
    from fluvial.registry.service.policy import Rules


class Unowned(StrEnum):
    """What holds for subjects without an owner."""

    OPEN = "open"
    DENY = "deny"


class RegistryServerError(FluvialError):
    """The registry cannot be served."""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("serve", epilog="Example:  fluvial schema serve --bootstrap-server kafka-1:9092,kafka-2:9092")(registry)


@with_cluster
def registry(
    *,
    settings: Settings,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to serve on.")] = REGISTRY_PORT_DEFAULT,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = HOST,
    topic: Annotated[str, typer.Option("--topic", help="Topic that holds the schemas.")] = "_schemas",
    unowned: Annotated[
        Unowned, typer.Option("--unowned", help="Whether subjects that no producer owns take schemas from anyone.")
    ] = Unowned.OPEN,
    admins: Annotated[
        list[str] | None,
        typer.Option(
            "--admin", metavar="PRODUCER", help="Acts for every owner; may be given again.", show_default=False
        ),
    ] = None,
    certificate: Certificate = None,
    allow_plaintext: Annotated[
        bool, typer.Option("--allow-plaintext", help="Listen beyond this machine without a certificate.")
    ] = False,
    allowed_hosts: AllowedHosts = None,
) -> None:
    """
    Serve a schema registry for another Kafka cluster until Ctrl-C; what it acknowledges stands in a topic there.

    The local platform serves its own. Several may be started for one cluster, on one machine or on many; clients then
    name them all: --registry-url http://a:8081,http://b:8081.
    """
    if settings.local:
        raise RegistryServerError(
            f"the local platform serves its schema registry already, at {settings.registry_url}; "
            "name the cluster that has none with --bootstrap-server"
        )
    if not (is_loopback(host) or certificate is not None or allow_plaintext):
        raise RegistryServerError(
            f"--host {host}: whoever reaches it could read passwords on their way and change what nobody owns: "
            "give it a certificate with --certificate, or say that it is meant with --allow-plaintext"
        )
    from fluvial.kafka.admin import admin_of, describe_cluster
    from fluvial.registry.service.policy import Rules

    describe_cluster(settings, admin_of(settings.cluster))
    rules = Rules(unowned=unowned.value, admins=frozenset(admins or ()))
    serving = _serve(
        settings, (host, port), topic, rules, certificate=certificate, allowed_hosts=frozenset(allowed_hosts or ())
    )
    asyncio.run(serving)


async def _serve(
    settings: Settings,
    address: tuple[str, int],
    topic: str,
    rules: "Rules",
    *,
    certificate: Path | None,
    allowed_hosts: frozenset[str],
) -> None:
    from fluvial.http_server import serve
    from fluvial.registry.logs.kafka_log import KafkaLog, follow
    from fluvial.registry.model.registry import Registry
    from fluvial.registry.service.app import create_app
    from fluvial.registry.service.forwarding import Forwarder
    from log_broker.core.security.listeners import TlsConfig
    from log_broker.errors import BrokerError
    from log_broker.server.net.tls import TlsContext

    host, port = address
    logging.basicConfig(level=logging.WARNING)
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    schemas = KafkaLog(settings.cluster.client(), topic)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(schemas.close)
        opened = Registry(schemas, rules=lambda: rules)
        try:
            tls = None
            if certificate is not None:
                clock = asyncio.get_running_loop().time
                tls = TlsContext(TlsConfig(location=str(certificate)), is_server=True, clock=clock)
            await schemas.open()
            await opened.open()
        except BrokerError as error:
            raise RegistryServerError(str(error)) from error
        forwarder = Forwarder(opened, schemas)
        stack.push_async_callback(forwarder.close)
        following = asyncio.create_task(follow(opened, schemas))
        stack.callback(following.cancel)

        def started(bound: int) -> None:
            if not is_loopback(host):
                terminal.say(f"warning: {OPEN_TO_THE_NETWORK.format(host)}")
            scheme = "http" if tls is None else "https"
            terminal.say(
                f"schemas of {settings.bootstrap_servers} are served at {scheme}://{host}:{bound}; Ctrl-C stops it"
            )

        app = create_app(opened, forwarder)
        serving = asyncio.create_task(serve(app, host, port, tls=tls, started=started, hosts=lambda: allowed_hosts))
        asked = asyncio.create_task(stopping.wait())
        await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        serving.cancel()
        (outcome,) = await asyncio.gather(serving, return_exceptions=True)
        if isinstance(outcome, OSError):
            raise RegistryServerError(f"{host}:{port}: {outcome.strerror or outcome}; choose another --port")
