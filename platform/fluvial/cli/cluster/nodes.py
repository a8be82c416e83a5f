"""`fluvial up`, `down` and `status`: the nodes of the local platform."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fluvial.cli import terminal
from fluvial.cli.options import AnswerFormat, DataDir, Form, settings_of, with_json
from fluvial.cli.schema.schema_sources import CONTRACTS
from fluvial.cli.signals import StopAsked, stop_signals_raise, stop_signals_wait
from fluvial.config import data_dir_words
from fluvial.errors import FluvialError
from fluvial.local.errors import LocalPlatformError
from fluvial.local.server import SERVER_PORT_DEFAULT
from fluvial.local.state import OPEN_TO_THE_NETWORK, client_properties, is_loopback

if TYPE_CHECKING:
    from fluvial.config import Settings
    from fluvial.local.errors import SilentNodeError
    from fluvial.local.start import Running
    from fluvial.local.status import NodeStatus
    from fluvial.query.served import Server

_ONE_A_CORE = "auto"

Brokers = Annotated[
    str | None,
    typer.Option(
        "--brokers",
        metavar="N|auto",
        help="Number of broker nodes; auto is one for each core (default: the existing number, or 1).",
        show_default=False,
    ),
]
Port = Annotated[
    int | None,
    typer.Option(
        "--port", help="Port of the first broker; the others take the next ones (default: 9092).", show_default=False
    ),
]
RegistryPort = Annotated[
    int | None,
    typer.Option(
        "--registry-port",
        help="Port of the first broker's schema registry; the others take the next ones (default: 8081).",
        show_default=False,
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        help="Port of the first broker's metrics for Prometheus; the others take the next ones (default: none).",
        show_default=False,
    ),
]
Node = Annotated[
    int | None, typer.Option("--node", min=0, help="Only the node with this id (default: all).", show_default=False)
]
Secure = Annotated[
    bool,
    typer.Option(
        "--secure", help="Make a new platform with certificates and a first user; all commands here reach it by these."
    ),
]
Serve = Annotated[
    bool,
    typer.Option("--serve", help="Also start `fluvial serve` for the warehouse: rows by key and queries over HTTP."),
]
ServePort = Annotated[int, typer.Option("--serve-port", min=1, max=65535, help="With --serve: its port.")]
FlightPort = Annotated[
    int | None,
    typer.Option(
        "--flight-port",
        metavar="PORT",
        min=1,
        max=65535,
        help="With --serve: take queries by Arrow Flight SQL at this port, too (default: not at all).",
        show_default=False,
    ),
]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Return when every node answers; the nodes go on.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.0, help="Seconds to wait for a node.")]


class SilentNodesError(LocalPlatformError):
    """The processes of some nodes run but do not answer; `nodes` has each one and what to do."""

    def __init__(self, nodes: "Sequence[SilentNodeError]") -> None:
        super().__init__("; ".join(map(str, nodes)))
        self.nodes = tuple(nodes)


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command(epilog="Example:  fluvial up --brokers 3 --detach")(up)
    app.command(epilog="Example:  fluvial down --data-dir /srv/fluvial")(down)
    app.command(epilog="Example:  fluvial status --format json")(status)


def up(
    *,
    brokers: Brokers = None,
    port: Port = None,
    registry_port: RegistryPort = None,
    metrics_port: MetricsPort = None,
    data_dir: DataDir = None,
    secure: Secure = False,
    serve: Serve = False,
    serve_port: ServePort = SERVER_PORT_DEFAULT,
    flight_port: FlightPort = None,
    detach: Detach = False,
    timeout: Timeout = 120.0,
) -> None:
    """
    Start the local platform: brokers and the schema registry on each, their data in one folder.

    Run again on the same folder, it starts only the nodes that are down. A larger --brokers adds nodes, which get new
    partitions at once and existing ones with `fluvial cluster reassign`. With --brokers auto a new platform has a node
    for each core, and topics that do not say otherwise have one copy and a partition for each node. Without --detach it
    runs until Ctrl-C and then stops the nodes that it started. If a node hangs, its name is printed and the status is
    1; the others are started.
    """
    from fluvial.local.server import server_of
    from fluvial.local.start import Layout, start, terminate, wait_for_end
    from fluvial.local.stop import stop_server
    from fluvial.local.voters import complete_voters

    _check_flight(flight_port, serve=serve)
    settings = settings_of(data_dir, metrics_port=metrics_port)
    folder = settings.data_dir
    layout = Layout(
        brokers=_count(brokers),
        one_a_core=brokers == _ONE_A_CORE,
        port=port,
        registry_port=registry_port,
        metrics_port=settings.metrics_port,
        secured=secure,
    )
    try:
        with stop_signals_raise():
            running = start(folder, layout, timeout_seconds=timeout)
            started = [child.node.id for child in running.started]
            silent = SilentNodesError(running.silent) if running.silent else None
            if silent is not None and not started:
                raise silent
            if silent is None:
                for voter in complete_voters(folder, running.platform):
                    terminal.say(f"node {voter} votes for the controller from now on")
            _show_running(running, folder)
            if serve and (detach or not started):
                _serve(settings, serve_port, flight_port, timeout)
            if silent is not None and detach:
                raise silent
            if silent is not None:
                terminal.complain(str(silent))
            if detach or not started:
                return
            terminal.say("Ctrl-C stops it.")
            is_ours = serve and server_of(folder) is None
            try:
                if serve:
                    _serve(settings, serve_port, flight_port, timeout)
                for child in wait_for_end(running.started):
                    terminal.say(f"node {child.node.id} has ended ({child.process.returncode}); its log is {child.log}")
            finally:
                with stop_signals_wait():
                    if is_ours:
                        stop_server(folder, timeout_seconds=timeout)
                    terminate(running.started)
            raise typer.Exit(1)
    except StopAsked:
        terminal.say("stopped")


def _count(brokers: str | None) -> int | None:
    """The number that --brokers gives, None where it gives none."""
    if brokers is None or brokers == _ONE_A_CORE:
        return None
    if not brokers.isdecimal() or not brokers.isascii() or not int(brokers):
        raise typer.BadParameter(f"--brokers {brokers}: a number from 1 on, or {_ONE_A_CORE} for one on each core")
    return int(brokers)


def _check_flight(port: int | None, *, serve: bool) -> None:
    if port is not None and not serve:
        raise typer.BadParameter("--flight-port is a port of --serve: add it")


def down(node: Node = None, data_dir: DataDir = None, timeout: Timeout = 30.0) -> None:
    """
    Stop every node of the local platform and its server, or one node; its data stays.

    A single stopped node remains a member: `fluvial up` starts it again, `fluvial cluster remove` removes it.
    """
    from fluvial.local.stop import stop

    folder = settings_of(data_dir).data_dir
    stopped = stop(folder, node_id=node, timeout_seconds=timeout)
    if not stopped:
        terminal.say(f"nothing was running in {folder}" if node is None else f"node {node} was not running")
    for each in stopped:
        how = "killed, since it did not end by itself" if each.killed else "stopped"
        what = "server" if each.id is None else f"node {each.id}"
        terminal.say(f"{what} (process {each.pid}): {how}")


@with_json
def status(data_dir: DataDir = None, answer_format: AnswerFormat = Form.TABLE) -> None:
    """
    Show which nodes of the local platform are up, those that answer on their port, and which disks failed.

    Where the working directory has contracts in schemas/, also those that differ from the registry's latest versions.
    """
    from fluvial.local.server import server_of
    from fluvial.local.status import status_of
    from fluvial.query.served import found as found_server

    settings = settings_of(data_dir)
    found = status_of(settings.data_dir)
    pid, address = server_of(settings.data_dir), found_server(settings)
    if pid is None:
        address = None
    contracts = _contracts(settings) if any(each.pid is not None for each in found.nodes) else {}
    if answer_format is Form.JSON:
        shown = {"profile": settings.profile, **found.as_json(), "contracts": contracts}
        url = None if address is None else f"{address.url}/tables"
        flight = None if address is None else address.flight_url
        shown["server"] = None if pid is None else {"pid": pid, "url": url, "flight": flight}
        terminal.answer(json.dumps(shown, indent=2))
        return
    if settings.profile is not None:
        terminal.answer(f"profile   {settings.profile}")
    terminal.answer(f"brokers   {found.platform.bootstrap_servers}")
    terminal.answer(f"registry  {found.platform.registry_url}")
    for each in found.nodes:
        terminal.answer(
            f"node {each.node.id}    {_condition(each)}  {each.node.host}:{each.node.port}  {each.data_dir}"
        )
        for line in _details(each):
            terminal.answer(f"          {line}")
    if pid is not None:
        terminal.answer(
            f"server    up, process {pid}  {'of another warehouse' if address is None else _places(address)}"
        )
    differing = [f"{subject} ({state})" for subject, state in contracts.items() if state != "unchanged"]
    if differing:
        terminal.answer(f"contracts {', '.join(differing)}; `fluvial schema check` says more")


def _serve(settings: "Settings", port: int, flight_port: int | None, timeout_seconds: float) -> None:
    from fluvial.local.server import start_server
    from fluvial.query.served import found, process_of

    server = start_server(
        settings.data_dir,
        port,
        flight_port=flight_port,
        is_ready=lambda pid: process_of(settings) == pid,
        timeout_seconds=timeout_seconds,
    )
    address = found(settings)
    where = f"of another warehouse than {settings.warehouse}" if address is None else _places(address)
    terminal.say(f"server {'started' if server.is_new else 'was up'}: {where}")
    if flight_port is not None and address is not None and address.flight_url is None:
        terminal.say("it was started without --flight-port: `fluvial down`, then `fluvial up` with it, opens that")


def _places(server: "Server") -> str:
    """Where a server is asked."""
    return f"{server.url}/tables" + (f", Flight SQL at {server.flight_url}" if server.flight_url else "")


def _contracts(settings: "Settings") -> dict[str, str]:
    """How each contract of the working directory stands with the registry; none where that cannot be said."""
    from fluvial.registry.contracts import check_all, load_contracts

    if not CONTRACTS.is_dir():
        return {}
    try:
        with settings.registry.client() as client:
            return {each.contract.subject: each.status for each in check_all(client, load_contracts(CONTRACTS))}
    except FluvialError as error:
        terminal.say(f"contracts cannot be compared with the registry: {error}")
        return {}


def _condition(each: "NodeStatus") -> str:
    if each.pid is not None:
        return f"up, process {each.pid}"
    if each.held_by is not None:
        return f"process {each.held_by} does not answer"
    return "down"


def _details(each: "NodeStatus") -> Iterator[str]:
    if each.node.metrics_url is not None:
        yield f"metrics {each.node.metrics_url}"
    for path in each.offline_log_dirs:
        yield (
            f"offline: {path} failed; its partitions accept no records; "
            "see the node's log, repair the disk, restart the node"
        )
    if each.disk_is_full and each.free_bytes is not None:
        yield f"full: {each.free_bytes >> 20} MiB free on the disk of {each.data_dir}; delete records or free space"


def _show_running(running: "Running", folder: Path) -> None:
    started = {child.node.id for child in running.started}
    silent = {each.node_id for each in running.silent}
    for node in running.platform.nodes:
        if node.id in silent:
            continue
        what = "started" if node.id in started else "was up"
        registry = f", registry {node.registry_url}" if node.registry_url is not None else ""
        metrics = f", metrics {node.metrics_url}" if node.metrics_url is not None else ""
        terminal.say(f"node {node.id} {what}: {node.host}:{node.port}{registry}{metrics}")
    if len(running.platform.nodes) > 1 and running.platform.settings.get("default.replication.factor") == "1":
        terminal.say(
            "warning: topics have one copy, as all nodes are on this machine: a node that is down takes its partitions "
            "along until it is back; `fluvial topic create --replication-factor 2` has another node hold them too"
        )
    exposed = [node.host for node in running.platform.nodes if not is_loopback(node.host)]
    if exposed:
        terminal.say(f"warning: {OPEN_TO_THE_NETWORK.format(', '.join(dict.fromkeys(exposed)))}")
    clients = client_properties(folder)
    if clients is not None:
        terminal.say(f"clients sign in by {clients}, which the commands here read by themselves")
    terminal.say(f"data in {folder}; stop it with `fluvial down{data_dir_words(folder)}`")
