"""
Which sockets a process may open: those of the internet alone, by a filter of its system calls (seccomp(2)).

Landlock lets a process connect to sockets in the file system whatever files it sees, so that to a container engine, a
key agent or the session's bus. Here the process may ask for none of that kind. Datagrams, which landlock holds to no
port, can be left out too.
"""

import ctypes
import platform
import struct
from dataclasses import dataclass

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_ALLOWED, _NOT_PERMITTED = 0x7FFF0000, 0x00050001
# Where the kernel puts what a call is about.
_NUMBER, _ARCHITECTURE, _FAMILY, _KIND = 0, 4, 16, 24
_AF_INET, _AF_INET6, _SOCK_STREAM, _KIND_MASK = 2, 10, 1, 0xF
# By io_uring sockets are opened without a call of socket(2). Numbers from the last one on are of another ABI.
_IO_URING_SETUP, _OTHER_ABI = 425, 0x40000000


@dataclass(frozen=True, slots=True)
class _Machine:
    """How the kernel knows an architecture, and its number of socket(2)."""

    audited_as: int
    socket: int


_MACHINES = {"x86_64": _Machine(0xC000003E, 41), "aarch64": _Machine(0xC00000B7, 198)}


def internet_only(*, datagrams: bool) -> bool:
    """
    Hold this process to sockets of the internet, and without `datagrams` to TCP; whether that could be.

    To be called while it has one thread.
    """
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        return False
    program = ctypes.create_string_buffer(_assembled(_filter(machine, datagrams=datagrams)))
    described = ctypes.create_string_buffer(struct.pack("HP", (len(program) - 1) // 8, ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return bool(libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, described, 0, 0) == 0)


def _filter(machine: _Machine, *, datagrams: bool) -> list[tuple[int, int, str, str]]:
    """Operations with their value and where they go if it holds and if not; "" is the next one."""
    kind = [(_LOAD, _KIND, "", ""), (_AND, _KIND_MASK, "", ""), (_JUMP_EQUAL, _SOCK_STREAM, "allow", "deny")]
    return [
        (_LOAD, _ARCHITECTURE, "", ""),
        (_JUMP_EQUAL, machine.audited_as, "", "deny"),
        (_LOAD, _NUMBER, "", ""),
        (_JUMP_AT_LEAST, _OTHER_ABI, "deny", ""),
        (_JUMP_EQUAL, _IO_URING_SETUP, "deny", ""),
        (_JUMP_EQUAL, machine.socket, "", "allow"),
        (_LOAD, _FAMILY, "", ""),
        (_JUMP_EQUAL, _AF_INET, "kind", ""),
        (_JUMP_EQUAL, _AF_INET6, "kind", "deny"),
        *([] if datagrams else kind),
        (_RETURN, _ALLOWED, "", ""),
        (_RETURN, _NOT_PERMITTED, "", ""),
    ]


def _assembled(operations: list[tuple[int, int, str, str]]) -> bytes:
    """The filter as the kernel takes it, in which jumps count the operations that they leave out."""
    count = len(operations)
    places = {"allow": count - 2, "deny": count - 1}
    places["kind"] = next(at for at, (_, value, *_) in enumerate(operations) if value == _AF_INET6) + 1

    def distance(at: int, goal: str) -> int:
        return places[goal] - at - 1 if goal else 0

    return b"".join(
        struct.pack("=HBBI", operation, distance(at, if_so), distance(at, if_not), value)
        for at, (operation, value, if_so, if_not) in enumerate(operations)
    )
