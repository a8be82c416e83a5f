"""What can keep a local platform from starting or stopping, each with its repair."""

import errno
from pathlib import Path

from fluvial.config import data_dir_words
from fluvial.errors import FluvialError


class LocalPlatformError(FluvialError):
    """The local platform is not in a state in which this can be done."""


class PortTakenError(LocalPlatformError):
    """Another program listens on a port that a node needs."""

    def __init__(self, host: str, port: int, *, flag: str, by: str = "another program") -> None:
        super().__init__(f"port {port} on {host} is taken by {by}; stop it, or choose another port with {flag}")
        self.port = port


class DataDirError(LocalPlatformError):
    """A data directory cannot be made or written."""

    def __init__(self, path: Path, error: OSError) -> None:
        at = error.filename or path
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            repair = "free some space, or choose another folder with --data-dir"
        else:
            repair = "choose a folder that you may write with --data-dir"
        super().__init__(f"cannot write the data directory {path}: {at}: {error.strerror or error}; {repair}")


class NodeError(LocalPlatformError):
    """A node did not come up, or cannot be stopped."""

    def __init__(self, node_id: int, message: str) -> None:
        super().__init__(f"node {node_id}: {message}")
        self.node_id = node_id
        self.message = message


class SilentNodeError(NodeError):
    """A process runs in a node's folder and does not answer on the node's port."""

    def __init__(self, node_id: int, *, pid: int, port: int, platform_dir: Path, folder: Path, stopped: bool) -> None:
        self.pid = pid
        self.stopped = stopped
        why = f" (it is stopped; `kill -CONT {pid}` lets it go on)" if stopped else ""
        super().__init__(
            node_id,
            f"process {pid} works in {folder} but does not answer on port {port}{why}; stop it with "
            f"`fluvial down --node {node_id}{data_dir_words(platform_dir)}`, then start again",
        )
