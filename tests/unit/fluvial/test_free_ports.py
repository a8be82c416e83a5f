"""Ports for processes that listen later: what is taken by then, and what is found taken."""

import socket
from pathlib import Path

import pytest

from fluvial import free_ports as module
from fluvial.free_ports import free_ports


def test_no_outgoing_connection_is_given_one() -> None:
    bounds = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(bounds.read_text().split()[0]) if bounds.exists() else 49_152
    assert free_ports("127.0.0.1", 16) + 16 <= first


def test_a_port_that_somebody_has_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_ports("127.0.0.1", 4)
    monkeypatch.setattr(module, "_PORTS", range(first, first + 4))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first + 1))
        assert free_ports("127.0.0.1", 2) == first + 2
        with pytest.raises(OSError, match=f"no 4 ports beside each other are free from {first} to {first + 3}"):
            free_ports("127.0.0.1", 4)


def test_an_address_of_another_machine_is_an_error_at_once() -> None:
    with pytest.raises(OSError, match="Cannot assign requested address"):
        free_ports("192.0.2.1")
