"""
Where an HTTP server beside a cluster listens, and what it asks of those who come: nothing, or a user of the cluster.

Who they are says `fluvial.cluster.users`, and `fluvial.http_sign_in` lets nobody else through.
"""

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fluvial.config import Settings
from fluvial.errors import FluvialError
from fluvial.local.state import is_loopback

HOST = "127.0.0.1"
FLAG = "--allow-plaintext"
_HOST, _CERTIFICATE, _ASKS = "FLUVIAL_SERVED_HOST", "FLUVIAL_SERVED_CERTIFICATE", "FLUVIAL_SERVED_SIGN_IN"


class ExposureError(FluvialError):
    """A server would be open to whom it should not be, or its certificate cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """
    The address of a server, its certificate with the key, and whether it asks for users of the cluster.

    Who reaches it on its own machine alone is asked nothing, unless it has a certificate.
    """

    host: str = HOST
    certificate: Path | None = None
    asks: bool = False

    @classmethod
    def of(cls, settings: Settings, *, does: str, host: str, certificate: Path | None, allow_plaintext: bool) -> Self:
        """
        Return the exposure of a server that is to listen at `host` and `does` something for those who come.

        `allow_plaintext` is for a network where everybody may do everything, or for a proxy that encrypts. Raises
        ExposureError, and ConfigError for the cluster of the settings.
        """
        _check_host(host)
        if certificate is not None:
            _check(certificate)
        is_exposed = not is_loopback(host)
        if not is_exposed and certificate is None:
            return cls(host=host)
        cluster = settings.cluster
        if is_exposed and not cluster.has_passwords and not allow_plaintext:
            raise ExposureError(
                f"other machines reach {host}, {does}, and the cluster at "
                f"{cluster.bootstrap_servers} ({cluster.protocol}) has no users with passwords to ask for: "
                f"secure it (docs/security.md), or add {FLAG} where everybody in the network may do everything"
            )
        if is_exposed and certificate is None and not allow_plaintext:
            raise ExposureError(
                f"other machines reach {host}, and passwords would go there in plain text: name a certificate with "
                f"--certificate, or add {FLAG} behind a proxy that encrypts"
            )
        return cls(
            host=host,
            certificate=None if certificate is None else certificate.absolute(),
            asks=cluster.has_passwords,
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Return what `environment` of another process has said."""
        certificate = environment.get(_CERTIFICATE)
        return cls(
            host=environment.get(_HOST) or HOST,
            certificate=Path(certificate) if certificate else None,
            asks=bool(environment.get(_ASKS)),
        )

    @property
    def environment(self) -> dict[str, str]:
        """The variables that say it to another process, which is the server."""
        return {
            _HOST: self.host,
            _CERTIFICATE: "" if self.certificate is None else str(self.certificate),
            _ASKS: "1" if self.asks else "",
        }

    @property
    def is_open(self) -> bool:
        """Whether everybody in the network may use the server."""
        return not is_loopback(self.host) and not self.asks

    def url(self, port: int) -> str:
        """Return where a client on this machine finds the server."""
        return f"http{'' if self.certificate is None else 's'}://{_bracketed(self._asked_at)}:{port}"

    def flight_url(self, port: int) -> str:
        """Return where a client of Arrow Flight on this machine finds the server."""
        return self._flight_at(self._asked_at, port)

    def flight_location(self, port: int) -> str:
        """Return where Arrow Flight listens."""
        return self._flight_at(self.host, port)

    def _flight_at(self, host: str, port: int) -> str:
        return f"grpc{'' if self.certificate is None else '+tls'}://{_bracketed(host)}:{port}"

    @property
    def _asked_at(self) -> str:
        return "localhost" if self.host in {"0.0.0.0", "::"} else self.host  # noqa: S104


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def family_of(host: str) -> socket.AddressFamily:
    """Return of which kind an address to listen at is."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _check_host(host: str) -> None:
    if not host:
        raise ExposureError("--host is empty; write an address or a name of this machine, or 0.0.0.0 for all of them")
    with socket.socket(family_of(host)) as trial:
        try:
            trial.bind((host, 0))
        except (OSError, UnicodeError, TypeError) as error:  # the last two for what cannot be a name
            reason = getattr(error, "strerror", None) or "no name of a host"
            raise ExposureError(f"--host {host}: {reason}; write an address or a name of this machine") from error


def _check(certificate: Path) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, password="")
    except OSError as error:  # SSLError is one
        reason = getattr(error, "reason", None) or error.strerror or str(error)
        raise ExposureError(
            f"--certificate {certificate}: {reason}; write the path of a PEM file with the certificate, those that "
            "signed it, and the key without a password"
        ) from error
