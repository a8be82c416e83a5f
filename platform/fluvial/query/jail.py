"""
What the process of the query engine may not do: speak to a network, read outside the warehouse, write anything.

The engine listens on a port, and whoever reaches it reads and writes files in its name. Its process therefore has a
network of its own, in which there is nobody else (network_namespaces(7)), and sees its own program and the warehouse
alone (landlock(7)). A kernel or a container that allows neither leaves the process as it is: see `Walls`.

A process that others are to reach on a port of this machine keeps the machine's network, and is held to the ports that
it is given, where the kernel can (landlock's version 4, Linux 6.7).
"""

import ctypes
import fcntl
import os
import socket
import stat
import struct
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
# The numbers of these calls are the same on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULESET_VERSION, _PATH_BENEATH, _NET_PORT = 1, 1, 2
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_READ = _EXECUTE | _READ_FILE | _READ_DIR
# How many kinds of access to files each version of landlock knows.
_KINDS_OF_ACCESS = {1: 13, 2: 14, 3: 15, 4: 15}
_KINDS_OF_ACCESS_NEWEST = 16
_BIND_TCP, _CONNECT_TCP = 1 << 0, 1 << 1
_KNOWS_PORTS, _KNOWS_SCOPES = 4, 6
_ABSTRACT_SOCKETS, _SIGNALS = 1 << 0, 1 << 1
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_BASE = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/etc/timezone", "/etc/nsswitch.conf")
_MACHINE = ("/sys/fs/cgroup", "/sys/devices/system/cpu", "/proc/meminfo", "/proc/cpuinfo", "/proc/self", "/dev/urandom")


@dataclass(frozen=True, slots=True)
class Walls:
    """
    What was put up: whether the process has a network of its own, and whether it sees the named folders alone.
    """

    network: bool
    files: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """
    The TCP ports that a process may listen on, and those it may connect to.
    """

    bound: Sequence[int] = ()
    reached: Sequence[int] = ()


def enter(readable: Sequence[Path], scratch: Path) -> Walls:
    """
    Wall this process in, as far as the machine allows; to be called while it has one thread and no open network.

    It may read `readable` and the Python that it runs in, and write below `scratch`. When its parent ends, it does.
    """
    end_with_parent()
    libc = ctypes.CDLL(None, use_errno=True)
    return Walls(network=_own_network(libc), files=_own_files(libc, readable, scratch))


def enter_in_reach(readable: Sequence[Path], scratch: Path, ports: Ports | None) -> Walls:
    """
    As :func:`enter`, for a process that is reached on this machine: it has these ports of the machine's, None for all.

    Where the kernel can, it also sends no signal to other processes, and reaches no abstract socket of theirs.
    """
    end_with_parent()
    libc = ctypes.CDLL(None, use_errno=True)
    files = _own_files(libc, readable, scratch, ports, is_apart=True)
    return Walls(network=files and ports is not None and knows_ports(), files=files)


def _own_network(libc: ctypes.CDLL) -> bool:
    # Root keeps its rights to the files of others only in the namespace of users that it is in.
    if libc.unshare(_CLONE_NEWNET) != 0 and libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh22x", b"lo", 0)
        flags = struct.unpack("16sh22x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | _IFF_UP))
    return True


def end_with_parent() -> None:
    """
    Have the kernel end this process when its parent ends.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0)


def is_possible() -> bool:
    """
    Whether this kernel can keep a process from files.
    """
    return _version(ctypes.CDLL(None, use_errno=True)) >= 1


def knows_ports() -> bool:
    """
    Whether this kernel can hold a process to ports.
    """
    return _version(ctypes.CDLL(None, use_errno=True)) >= _KNOWS_PORTS


def _version(libc: ctypes.CDLL) -> int:
    return int(libc.syscall(_CREATE_RULESET, None, 0, _RULESET_VERSION))


def _own_files(
    libc: ctypes.CDLL, readable: Sequence[Path], scratch: Path, ports: Ports | None = None, *, is_apart: bool = False
) -> bool:
    version = _version(libc)
    if version < 1:
        return False
    handled = (1 << _KINDS_OF_ACCESS.get(version, _KINDS_OF_ACCESS_NEWEST)) - 1
    network = _BIND_TCP | _CONNECT_TCP if ports is not None and version >= _KNOWS_PORTS else 0
    scopes = _ABSTRACT_SOCKETS | _SIGNALS if is_apart and version >= _KNOWS_SCOPES else 0
    # A kernel refuses fields that it does not know, but for those that are 0.
    attributes = struct.pack("=QQQ", handled, network, scopes)
    ruleset = libc.syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        return False
    try:
        for path in (*_program(), *readable):
            _allow(libc, ruleset, path, handled & _READ)
        _allow(libc, ruleset, scratch, handled)
        _allow(libc, ruleset, Path("/dev/null"), handled & (_READ_FILE | _WRITE_FILE))
        if network and ports is not None:
            for access, numbers in ((_BIND_TCP, ports.bound), (_CONNECT_TCP, ports.reached)):
                for number in numbers:
                    libc.syscall(_ADD_RULE, ruleset, _NET_PORT, struct.pack("=QQ", access, number), 0)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        return bool(libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _program() -> Iterable[Path]:
    """What Python and its packages are read from, also later on."""
    yield from (Path(path) for path in dict.fromkeys((*_BASE, *_MACHINE, sys.prefix, sys.base_prefix)))
    yield from (Path(path) for path in sys.path if path)


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, access: int) -> None:
    with suppress(OSError):
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not stat.S_ISDIR(os.fstat(opened).st_mode):
                access &= _OF_A_FILE
            libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", access, opened), 0)
        finally:
            os.close(opened)
