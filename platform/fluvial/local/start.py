"""
Starting what is down of a local platform, and leaving alone what is up.

Everything that can be known beforehand (wrong ports, a folder that cannot be written) is said before a process is
started. When a node does not come up, those that were started with it are stopped again. A process that works in a
node's folder and does not answer keeps no other node from being started.
"""

import contextlib
import errno
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from fluvial.kafka import KafkaCluster
from fluvial.local import probe
from fluvial.local.child import Child, spawn
from fluvial.local.errors import DataDirError, LocalPlatformError, NodeError, PortTakenError, SilentNodeError
from fluvial.local.lock import PLATFORM_LOCK, FolderLock
from fluvial.local.rights import make_private
from fluvial.local.security import secure
from fluvial.local.state import (
    PORT_DEFAULT,
    REGISTRY_PORT_DEFAULT,
    NodeSpec,
    Platform,
    client_properties,
    settings_of_one_machine,
)
from fluvial.local.status import NodeStatus, is_stopped, node_status

TIMEOUT_SECONDS = 120.0
"""A node that recovers a large log after a crash takes its time."""

BROKERS_MAX = 64
_PORT_MAX = 65_535
_POLL_SECONDS = 0.005
_POLL_SECONDS_MAX = 0.1
_STOP_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """
    What the user asks for; None leaves it as it is, or at the default for a new platform.

    With `one_a_core` there is a node for each core at least, in place of `brokers`.
    """

    brokers: int | None = None
    one_a_core: bool = False
    port: int | None = None
    registry_port: int | None = None
    metrics_port: int | None = None
    secured: bool = False


class _Wanted(TypedDict):
    brokers: int
    port: int
    registry_port: int
    metrics_port: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """
    A platform of which every node answers but those in `silent`; `started` are the processes that this call started.
    """

    platform: Platform
    started: tuple[Child, ...]
    silent: tuple[SilentNodeError, ...] = ()


def start(data_dir: Path, layout: Layout, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Running:
    """
    Start the nodes of `data_dir` that are down; return when every node is registered and answers.

    A node whose process runs and does not answer by then is among the result's `silent`; what was down is started all
    the same. Raises LocalPlatformError, one of its kinds, or ConfigError, and has then started nothing that still runs.
    """
    deadline = time.monotonic() + timeout_seconds
    with _only_one(data_dir, timeout_seconds):
        recorded = Platform.load(data_dir)
        if layout.secured:
            secure(data_dir)
        known = [] if recorded is None else [node_status(data_dir, recorded, node) for node in recorded.nodes]
        platform = _planned(data_dir, recorded, layout, known)
        up = {each.node.id for each in known if each.pid is not None}
        # In use but silent: starting, or stuck. Whoever started it may have it ready in a moment.
        busy = [each for each in known if each.pid is None and each.held_by is not None]
        missing = [n for n in platform.nodes if n.id not in up and n.id not in {each.node.id for each in busy}]
        _check_ports(missing)
        if platform != recorded:
            _save(platform, data_dir)
        children: list[Child] = []
        try:
            for node in missing:
                children.append(spawn(data_dir, platform, node))
            silent = _await_answers(data_dir, platform, busy, children, deadline)
            _wait_registered(
                platform,
                children,
                deadline,
                without={each.node_id for each in silent},
                access=probe.access_of(data_dir),
            )
        except BaseException:
            terminate(children)
            raise
        finally:
            for child in children:
                child.close()
        return Running(platform=platform, started=tuple(children), silent=silent)


@contextlib.contextmanager
def _only_one(data_dir: Path, timeout_seconds: float) -> Iterator[None]:
    try:
        make_private(data_dir, mark=PLATFORM_LOCK)
        lock = FolderLock(data_dir / PLATFORM_LOCK)
        acquired = lock.acquire(timeout_seconds)
    except OSError as error:
        raise DataDirError(data_dir, error) from error
    if not acquired:
        raise LocalPlatformError(
            f"another `fluvial up` has been starting {data_dir} for too long; end it and try again"
        )
    with lock:
        yield


def _planned(data_dir: Path, recorded: Platform | None, layout: Layout, known: list[NodeStatus]) -> Platform:
    if recorded is None:
        brokers, port, registry_port, metrics_port = 1, PORT_DEFAULT, REGISTRY_PORT_DEFAULT, None
    else:
        brokers, port, registry_port = len(recorded.nodes), recorded.port, recorded.registry_port
        metrics_port = recorded.metrics_port
    asked = max(brokers, _cores()) if layout.one_a_core else layout.brokers
    wanted: _Wanted = {
        "brokers": asked or brokers,
        "port": layout.port or port,
        "registry_port": layout.registry_port or registry_port,
        "metrics_port": layout.metrics_port or metrics_port,
    }
    if recorded is None:
        settings = settings_of_one_machine(wanted["brokers"]) if layout.one_a_core else {}
        planned = Platform.planned(**wanted, secured=client_properties(data_dir) is not None, settings=settings)
    else:
        # Whoever names the port wants it; without that, ports nobody asked for may be another program's.
        down = [each.node.id for each in known if each.held_by is None]
        planned = recorded.with_layout(**wanted, registry_on=down if layout.registry_port is not None else ())
    _check_layout(planned)
    if recorded is None:
        return planned
    if wanted["brokers"] < brokers:
        raise LocalPlatformError(
            f"the platform in {data_dir} has {brokers} brokers and would lose the data of some with "
            f"--brokers {wanted['brokers']}; take a node out with `fluvial cluster remove NODE`"
        )
    moved = (wanted["port"], wanted["registry_port"], wanted["metrics_port"]) != (port, registry_port, metrics_port)
    if moved and any(each.held_by is not None for each in known):
        raise LocalPlatformError(
            f"the platform in {data_dir} is running on port {port} with its registry on {registry_port}, "
            f"{'without metrics' if metrics_port is None else f'metrics from {metrics_port} on'}; leave out "
            "--port, --registry-port and --metrics-port, or stop it first with `fluvial down`"
        )
    return planned


def _cores() -> int:
    """The cores that this process may use, as many as there may be nodes at most."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, BROKERS_MAX)


def _check_layout(platform: Platform) -> None:
    last = platform.nodes[-1].id
    if len(platform.nodes) > BROKERS_MAX:
        raise LocalPlatformError(f"--brokers {len(platform.nodes)}: a local platform has 1 to {BROKERS_MAX} brokers")
    ports = {
        "--port": (platform.port, [node.port for node in platform.nodes]),
        "--registry-port": (
            platform.registry_port,
            [node.registry_port for node in platform.nodes if node.registry_port is not None],
        ),
    }
    if platform.metrics_port is not None:
        ports["--metrics-port"] = (platform.metrics_port, [platform.metrics_port + node.id for node in platform.nodes])
    taken: dict[int, str] = {}
    for flag, (first, all_of_them) in ports.items():
        if not 1 <= first <= max(all_of_them) <= _PORT_MAX:
            raise LocalPlatformError(
                f"{flag} {first}: ports {first} to {first + last} are not all within 1 to {_PORT_MAX}"
            )
        for port in all_of_them:
            if (other := taken.setdefault(port, flag)) != flag:
                raise LocalPlatformError(
                    f"{flag} {first}: one port a broker from there on meets those of {other} "
                    f"({ports[other][0]} to {max(ports[other][1])}); choose another"
                )


def _check_ports(nodes: list[NodeSpec]) -> None:
    for node in nodes:
        _check_port(node.host, node.port, "--port")
        if node.registry_port is not None:
            _check_port(node.host, node.registry_port, "--registry-port")
        if node.metrics_port is not None:
            _check_port(node.host, node.metrics_port, "--metrics-port")


def _check_port(host: str, port: int, flag: str) -> None:
    with socket.socket() as trial:
        # As the node will bind it: what a former node left in TIME_WAIT is no hindrance.
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except PermissionError as error:
            raise LocalPlatformError(
                f"port {port} on {host} is not ours to open; choose one above 1023 with {flag}"
            ) from error
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise LocalPlatformError(
                    f"port {port} on {host}: {error.strerror}; choose another with {flag}"
                ) from error
            answer = probe.ask(host, port, timeout_seconds=0.5) if flag == "--port" else probe.Stranger()
            by = (
                f"another Kafka cluster ({answer.cluster_id})"
                if isinstance(answer, probe.Cluster)
                else "another program"
            )
            raise PortTakenError(host, port, flag=flag, by=by) from error


def _save(platform: Platform, data_dir: Path) -> None:
    try:
        platform.save(data_dir)
    except OSError as error:
        raise DataDirError(data_dir, error) from error


def _wait_ready(children: list[Child], deadline: float) -> None:
    waiting = {child.pipe: child for child in children}
    while waiting:
        readable, _, _ = select.select(list(waiting), [], [], max(0.0, deadline - time.monotonic()))
        if not readable:
            late = next(iter(waiting.values()))
            raise NodeError(late.node.id, f"is not ready yet and was stopped; what it was doing is in {late.log}")
        for pipe in readable:
            if waiting[pipe].hear():
                del waiting[pipe]


def _await_answers(
    data_dir: Path, platform: Platform, busy: list[NodeStatus], children: list[Child], deadline: float
) -> tuple[SilentNodeError, ...]:
    """Wait until our processes are ready and those that others started answer; return the ones that do not."""
    access = probe.access_of(data_dir)
    try:
        _wait_ready(children, deadline)
    except NodeError as error:
        # A node is ready once the controller knows of it, and a node that hangs may be the controller.
        hung = [
            _silent(data_dir, each) for each in busy if not probe.is_up(each.node, platform.cluster_id, access=access)
        ]
        if not hung:
            raise
        raise NodeError(error.node_id, "; ".join([error.message, *map(str, hung)])) from error
    return tuple(_silent(data_dir, each) for each in busy if not _comes_up(platform, each, deadline, access))


def _comes_up(platform: Platform, each: NodeStatus, deadline: float, access: KafkaCluster | None) -> bool:
    while not probe.is_up(each.node, platform.cluster_id, access=access):
        if time.monotonic() >= deadline or _is_stopped(each):
            return False
        time.sleep(_POLL_SECONDS_MAX)
    return True


def _is_stopped(each: NodeStatus) -> bool:
    return each.held_by is not None and is_stopped(each.held_by)


def _silent(data_dir: Path, each: NodeStatus) -> SilentNodeError:
    assert each.held_by is not None, "its folder is in use"
    return SilentNodeError(
        each.node.id,
        pid=each.held_by,
        port=each.node.port,
        platform_dir=data_dir,
        folder=each.data_dir,
        stopped=_is_stopped(each),
    )


def _wait_registered(
    platform: Platform,
    children: list[Child],
    deadline: float,
    *,
    without: Collection[int],
    access: KafkaCluster | None,
) -> None:
    """Wait until each node lists all nodes and its registry answers, those in `without` left out."""
    nodes = [node for node in platform.nodes if node.id not in without]
    for node in nodes:
        pause = _POLL_SECONDS
        while (lacking := _lacking(platform, node, nodes, access)) is not None:
            dead = next((child for child in children if child.process.poll() is not None), None)
            if dead is not None:
                raise NodeError(dead.node.id, f"ended right after its start; its log is {dead.log}")
            if time.monotonic() >= deadline:
                raise NodeError(node.id, lacking)
            time.sleep(pause)
            pause = min(2 * pause, _POLL_SECONDS_MAX)


def _lacking(platform: Platform, node: NodeSpec, nodes: list[NodeSpec], access: KafkaCluster | None) -> str | None:
    answer = probe.ask(node.host, node.port, access=access)
    if not isinstance(answer, probe.Cluster) or answer.cluster_id != platform.cluster_id:
        return f"does not answer on port {node.port}"
    absent = [str(each.id) for each in nodes if not answer.has(each)]
    if absent:
        return f"does not know of node {', '.join(absent)} yet"
    if node.registry_port is not None and not probe.registry_answers(node.host, node.registry_port, access=access):
        return f"its registry does not answer on port {node.registry_port}"
    return None


def terminate(children: list[Child] | tuple[Child, ...], *, timeout_seconds: float = _STOP_SECONDS) -> None:
    """Stop processes that we started: SIGTERM to all, SIGKILL to those still there after the timeout."""
    for child in children:
        if child.process.poll() is None:
            child.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + timeout_seconds
    for child in children:
        try:
            child.process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()


def wait_for_end(children: tuple[Child, ...]) -> Iterator[Child]:
    """Give each of our processes as it ends."""
    alive = list(children)
    while alive:
        ended = [child for child in alive if child.process.poll() is not None]
        yield from ended
        alive = [child for child in alive if child not in ended]
        if alive:
            _sleep_until_a_child_ends(alive)


def _sleep_until_a_child_ends(children: list[Child]) -> None:
    if not hasattr(os, "pidfd_open"):
        time.sleep(0.2)
        return
    descriptors = [os.pidfd_open(child.process.pid) for child in children]
    try:
        select.select(descriptors, [], [])
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
