"""
One node process as the command that started it sees it.

The node says on a pipe of its own that it is ready or why it cannot be; its log goes to `<node folder>/node.log`.
"""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from fluvial.local.errors import DataDirError, NodeError
from fluvial.local.rights import FILE_MODE, make_private
from fluvial.local.state import NodeSpec, Platform, server_properties

LOG = "node.log"
LOG_BYTES_MAX = 16 << 20
"""A log that has grown past this is put aside when its node starts."""

READY = "ready"
_MESSAGE_BYTES_MAX = 4096


@dataclass(slots=True, kw_only=True)
class Child:
    """A node that this process started. `pipe` ends when the node has said its word, or has died."""

    node: NodeSpec
    process: "subprocess.Popen[bytes]"
    pipe: int
    log: Path
    log_start: int
    heard: bytearray = field(default_factory=bytearray)

    def hear(self) -> bool:
        """Take what the pipe has; True at its end, when the node is ready. Raises NodeError when it is not."""
        chunk = os.read(self.pipe, _MESSAGE_BYTES_MAX)
        self.heard += chunk[: _MESSAGE_BYTES_MAX - len(self.heard)]
        if chunk:
            return False
        said = self.heard.decode(errors="replace").strip()
        if said == READY:
            return True
        raise NodeError(self.node.id, said or f"{self._end()}; its log is {self.log}")

    def close(self) -> None:
        """Close our end of the pipe; the process goes on."""
        if self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1

    def _end(self) -> str:
        """Tell how the process ended and what it said last."""
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "closed its pipe without a word"
        how = f"ended with exit status {code}" if code >= 0 else f"was ended by signal {-code}"
        try:
            with self.log.open("rb") as file:
                file.seek(self.log_start)
                lines = file.read(1 << 16).decode(errors="replace").split("\n")
        except OSError:
            return how
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{how}: {last}" if last else how


def spawn(data_dir: Path, platform: Platform, node: NodeSpec) -> Child:
    """Start the process of a node in a session of its own; raises DataDirError when its folder cannot be written."""
    folder = data_dir.absolute() / node.data_dir
    log = folder / LOG
    try:
        make_private(folder, mark=LOG)
        if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
            log.replace(log.with_suffix(".log.1"))
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
    except OSError as error:
        raise DataDirError(data_dir, error) from error
    read_end, write_end = os.pipe()
    try:
        process = subprocess.Popen(
            _command(folder, platform, node, write_end),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # Ctrl-C in our terminal is for us: we stop the nodes in our own way.
            start_new_session=True,
            pass_fds=(write_end,),
            cwd=folder,
        )
        return Child(node=node, process=process, pipe=read_end, log=log, log_start=os.fstat(output).st_size)
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
        os.close(output)


def _command(folder: Path, platform: Platform, node: NodeSpec, notify: int) -> list[str]:
    # -P: the folder it starts in holds data, not modules.
    words = [sys.executable, "-P", "-m", "fluvial.node"]
    words += ["--node-id", str(node.id), "--host", node.host, "--port", str(node.port)]
    words += ["--data-dir", str(folder), "--cluster-id", platform.cluster_id]
    if node.registry_port is not None:
        words += ["--registry-port", str(node.registry_port)]
    elif len(platform.nodes) > 1:
        # Any of them may come to write the schemas; the registry that clients know passes writes on to it.
        words += ["--registry-port", "0"]
    config = server_properties(folder.parent)
    if config is not None:
        words += ["--config", str(config)]
    for name, value in platform.settings.items():
        words += ["--set", f"{name}={value}"]
    if node.metrics_port is not None:
        words += ["--metrics-port", str(node.metrics_port)]
    # Those that have voted from the start know the controller for certain.
    others = [each.address for each in platform.founders or platform.nodes if each is not node]
    if not node.founder and others:
        words += ["--controller-quorum-bootstrap-servers", ",".join(others)]
    elif len(platform.founders) > 1:
        voters = ",".join(f"{each.id}@{each.address}" for each in platform.founders)
        words += ["--controller-quorum-voters", voters]
    return [*words, "--notify-fd", str(notify)]
