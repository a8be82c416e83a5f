"""
TLS by Python's `ssl`, from PEM files, for who connects to this node and for whom it connects to.

Files that have changed are read again for the connections that come after that, so that a certificate is replaced by
replacing its file. One that cannot be used is told of, and the one before it stays.
"""

import contextlib
import logging
import os
import ssl
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from log_broker.core.security.certificates import distinguished_name
from log_broker.core.security.listeners import TlsConfig
from log_broker.core.security.principal import ANONYMOUS, Principal
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.net.tls_alerts import TellingContext
from log_broker.server.process.log_limiter import RateLimitedLog

_log = logging.getLogger(__name__)

_Stamp = tuple[tuple[int, int, int] | None, ...]  # when each file was written, and which it is

LOOK_SECONDS = 1.0  # how often it is looked whether files have changed
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class TlsContext:
    """What one listener's connections are encrypted by, as its files are now."""

    def __init__(self, config: TlsConfig, *, is_server: bool, clock: Callable[[], float]) -> None:
        """Raises BrokerError(INVALID_CONFIG) that names the file, or the setting, that cannot be used."""
        self._config = config
        self._is_server = is_server
        self._clock = clock
        self._trouble = RateLimitedLog(_log, clock)
        self._stamp = _stamp(config)
        self._context = _context(config, is_server=is_server)
        self._looked_at = clock()

    def current(self) -> ssl.SSLContext:
        """Return the context for a new connection."""
        now = self._clock()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            stamp = _stamp(self._config)
            if stamp != self._stamp:
                self._read_again(stamp)
        return self._context

    def _read_again(self, stamp: _Stamp) -> None:
        try:
            self._context = _context(self._config, is_server=self._is_server)
        except BrokerError as error:
            self._trouble.failed("the certificates stay as they were: %s", error)
            return
        self._stamp = stamp
        self._trouble.recovered("the certificates can be used again")
        _log.info("certificates were read again from %s", self._config.location or self._config.trusted_location)


def principal_of(config: TlsConfig, certificate: dict[str, object] | None) -> Principal:
    """Return whose certificate that is, as `getpeercert` gives it; raises ValueError where no rule names anybody."""
    if not certificate:
        return ANONYMOUS
    subject: tuple[tuple[tuple[str, str], ...], ...] = certificate.get("subject", ())  # type: ignore[assignment]
    name = distinguished_name(subject)
    made = config.rules.apply(name)
    if not made:
        raise ValueError(f"no rule of ssl.principal.mapping.rules makes a user of {name!r}")
    return Principal(made)


def _context(config: TlsConfig, *, is_server: bool) -> ssl.SSLContext:
    context = TellingContext(ssl.PROTOCOL_TLS_SERVER) if is_server else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    wanted = [_VERSIONS[each] for each in config.versions]
    context.minimum_version, context.maximum_version = min(wanted), max(wanted)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    if is_server:
        # A session that is taken up again would stand for a certificate that may not be trusted any more.
        context.options |= ssl.OP_NO_TICKET | ssl.OP_CIPHER_SERVER_PREFERENCE
        context.num_tickets = 0
        context.verify_mode = _CLIENT_AUTH[config.client_auth]
    else:
        context.check_hostname = config.checks_host
    named = "ssl.keystore.location"
    try:
        if config.location or config.chain:
            with _files(config) as (chain, key):
                context.load_cert_chain(chain, key, config.key_password)
        named = "ssl.truststore.location"
        if config.trusted_location or config.trusted:
            context.load_verify_locations(config.trusted_location or None, cadata=config.trusted or None)
        else:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH if is_server else ssl.Purpose.SERVER_AUTH)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        where = config.location if named == "ssl.keystore.location" else config.trusted_location
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        raise BrokerError(
            ErrorCode.INVALID_CONFIG, f"{named}: {where or 'the PEM text'} cannot be used: {reason}"
        ) from error
    return context


@contextlib.contextmanager
def _files(config: TlsConfig) -> Iterator[tuple[str, str | None]]:
    """Yield the files of certificates and key; those that were given as text are files for a moment."""
    if not config.chain:
        yield config.location, None
        return
    descriptor, name = tempfile.mkstemp(suffix=".pem")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{config.chain}\n{config.key}\n")
        yield name, None
    finally:
        os.unlink(name)


def _stamp(config: TlsConfig) -> _Stamp:
    return tuple(_stamp_of(Path(name)) for name in (config.location, config.trusted_location) if name)


def _stamp_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
