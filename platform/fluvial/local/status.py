"""Which nodes of a local platform are up, asked of the nodes."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fluvial.local import probe
from fluvial.local.errors import LocalPlatformError
from fluvial.local.lock import NODE_LOCK, holder
from fluvial.local.state import NodeSpec, Platform

_QUESTIONS_MAX = 16
FREE_BYTES_MIN = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """
    One node: `pid` is None unless it answers on its port; `held_by` is the process that works in its folder.

    `offline_log_dirs` are those that failed it while it runs, `free_bytes` is the room on its disk, None if unknown.
    """

    node: NodeSpec
    pid: int | None
    held_by: int | None
    data_dir: Path
    offline_log_dirs: tuple[str, ...] = ()
    free_bytes: int | None = None

    @property
    def disk_is_full(self) -> bool:
        """Whether there is no room for the next segment's records."""
        return self.free_bytes is not None and self.free_bytes < FREE_BYTES_MIN


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformStatus:
    """A platform and its nodes."""

    platform: Platform
    nodes: tuple[NodeStatus, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the shape that `fluvial status --format json` prints."""
        return {
            "bootstrap_servers": self.platform.bootstrap_servers,
            "registry_url": self.platform.registry_url,
            "nodes": [
                {
                    "id": each.node.id,
                    "pid": each.pid,
                    "host": each.node.host,
                    "port": each.node.port,
                    "data_dir": str(each.data_dir),
                    "registry_url": each.node.registry_url,
                    "metrics_url": each.node.metrics_url,
                    "offline_log_dirs": list(each.offline_log_dirs),
                    "free_bytes": each.free_bytes,
                }
                for each in self.nodes
            ],
        }


def platform_of(data_dir: Path) -> Platform:
    """Return the platform of `data_dir`; raises LocalPlatformError where there is none."""
    platform = Platform.load(data_dir)
    if platform is None:
        raise LocalPlatformError(
            f"no local platform in {data_dir}; start one with `fluvial up`, or name its folder with --data-dir"
        )
    return platform


def status_of(data_dir: Path, *, timeout_seconds: float = probe.TIMEOUT_SECONDS) -> PlatformStatus:
    """Ask every node of the platform in `data_dir`; raises LocalPlatformError where there is none."""
    platform = platform_of(data_dir)

    def look(node: NodeSpec) -> NodeStatus:
        return node_status(data_dir, platform, node, timeout_seconds=timeout_seconds)

    if len(platform.nodes) == 1:
        return PlatformStatus(platform=platform, nodes=(look(platform.nodes[0]),))
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(len(platform.nodes), _QUESTIONS_MAX)) as pool:
        return PlatformStatus(platform=platform, nodes=tuple(pool.map(look, platform.nodes)))


def node_status(
    data_dir: Path, platform: Platform, node: NodeSpec, *, timeout_seconds: float = probe.TIMEOUT_SECONDS
) -> NodeStatus:
    """Ask one node; it is up only if the process that holds its folder answers as this node of this cluster."""
    folder = data_dir.absolute() / node.data_dir
    pid = holder(folder / NODE_LOCK)
    access = None if pid is None else probe.access_of(data_dir)
    up = pid is not None and probe.is_up(node, platform.cluster_id, timeout_seconds, access=access)
    return NodeStatus(
        node=node,
        pid=pid if up else None,
        held_by=pid,
        data_dir=folder,
        offline_log_dirs=probe.offline_log_dirs(node.host, node.port, timeout_seconds, access=access) if up else (),
        free_bytes=_free_bytes(folder),
    )


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by SIGSTOP or a debugger, so that it cannot answer; False where unknown."""
    try:
        # https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html: the state stands behind the name, in parentheses.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] in {"T", "t"}
    except (OSError, IndexError):
        return False


def _free_bytes(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
