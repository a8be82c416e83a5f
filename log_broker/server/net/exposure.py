"""Whether a node would be open to the network: reached from other machines, where nobody is asked who they are."""

import contextlib
import ipaddress
import stat
from pathlib import Path

from log_broker.config.broker import BrokerConfig
from log_broker.core.security.listeners import listeners_of
from log_broker.errors import BrokerError, ErrorCode

FLAG = "--allow-plaintext"


def exposed_hosts(config: BrokerConfig) -> list[str]:
    """Return the addresses of such listeners; raises BrokerError(INVALID_CONFIG) for listeners that cannot be."""
    listening = listeners_of(config.security, config.host, config.port, config.advertised_host)
    open_ones = (each.host for each in listening.listeners if not each.knows_callers)
    return list(dict.fromkeys(host for host in open_ones if not is_loopback(host)))


def check_exposure(config: BrokerConfig, *, allow_plaintext: bool) -> list[str]:
    """Return the addresses that are open to the network; raises BrokerError for any that was not asked for."""
    hosts = exposed_hosts(config)
    if hosts and not allow_plaintext:
        raise BrokerError(
            ErrorCode.INVALID_CONFIG,
            f"other machines reach {', '.join(host or 'every address of this one' for host in hosts)}, and nothing "
            "there asks who they are: name certificates and users in a file for --config (docs/security.md), listen "
            f"at 127.0.0.1, or add {FLAG} where everybody in the network may do everything",
        )
    return hosts


def readable_by_others(config: BrokerConfig, file: Path | None) -> list[str]:
    """Return a line for each file with secrets that other users of this machine can read: settings `file` and keys."""
    listening = listeners_of(config.security, config.host, config.port, config.advertised_host)
    paths = [] if file is None else [file]
    paths += [Path(each.tls.location) for each in listening.listeners if each.tls is not None and each.tls.location]
    told = []
    for path in dict.fromkeys(paths):
        with contextlib.suppress(OSError):
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & 0o044:
                told.append(f"{path} holds secrets and other users of this machine can read it: chmod go= {path}")
    return told


def is_loopback(host: str) -> bool:
    """Whether who listens at `host` is reached from its own machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
