"""
`fluvial` commands as forks of one process that has imported the command line, in a tenth of the time that a new
interpreter takes.

Each is a process with descriptors, environment, folder and exit status of its own. What starts the command itself
(its entry point, the imports) is left to the tests that run it by its path.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

MESSAGE_BYTES_MAX = 1 << 20


class Forks:
    """The process that is forked; it ends with the one that made it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fluvial-forks-")
        self._door = str(Path(self._folder.name) / "door")
        self._server = subprocess.Popen(
            [sys.executable, __file__, self._door],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == b"ready\n"

    def run(
        self, words: Sequence[str], *, cwd: Path, environment: Mapping[str, str], stdin: bytes, timeout_seconds: float
    ) -> "subprocess.CompletedProcess[str]":
        """Run `fluvial WORDS…` to its end; raises TimeoutExpired."""
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link,
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            given.write(stdin)
            given.seek(0)
            link.settimeout(timeout_seconds)
            link.connect(self._door)
            wanted = json.dumps({"words": list(words), "cwd": str(cwd), "environment": dict(environment)})
            socket.send_fds(link, [wanted.encode()], [given.fileno(), out.fileno(), err.fileno()])
            pid = int(link.recv(64))
            try:
                status = int(link.recv(64))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(words), timeout_seconds) from None
            printed = [_whole(file.fileno()) for file in (out, err)]
        return subprocess.CompletedProcess(["fluvial", *words], status, *printed)


@cache
def forks() -> Forks:
    """Return the one of this process of tests."""
    return Forks(os.environ | {"NO_COLOR": "1", "COLUMNS": "160"})


def _whole(descriptor: int) -> str:
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(os.dup(descriptor), "rb") as file:
        return file.read().decode()


def _serve(door: str) -> int:
    from fluvial.cli.main import execute

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(door)
        listener.listen()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in ready:
                return 0  # whoever asked is gone
            link, _ = listener.accept()
            if os.fork() == 0:
                break
            link.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, descriptors, _, _ = socket.recv_fds(link, MESSAGE_BYTES_MAX, 3)
    pid = os.fork()
    if pid:
        link.send(b"%d" % pid)
        _, status = os.waitpid(pid, 0)
        link.send(b"%d" % os.waitstatus_to_exitcode(status))
        os._exit(0)
    link.close()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    wanted = json.loads(message)
    os.chdir(wanted["cwd"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    sys.argv = ["fluvial", *wanted["words"]]
    return execute(wanted["words"])


if __name__ == "__main__":
    sys.exit(_serve(sys.argv[1]))
