"""TLS by Python's `ssl` as client properties ask for it, which are the same for brokers and a registry."""

import ssl
import tempfile
from pathlib import Path

from fluvial.errors import ConfigError
from fluvial.kafka.java import pem_text
from fluvial.properties import Properties


def tls_context(properties: Properties) -> ssl.SSLContext:
    """Return what a server is verified by and what it is shown; raises ConfigError naming what `ssl` cannot use."""
    values = properties.as_dict()
    named = "ssl.ca"
    try:
        authority = Path(values.get("ssl.ca.location", "probe")).expanduser()
        is_given = str(authority) != "probe"
        context = ssl.create_default_context(
            cafile=authority if is_given and not authority.is_dir() else None,
            capath=authority if is_given and authority.is_dir() else None,
            cadata=values.get("ssl.ca.pem"),
        )
        context.check_hostname = values.get("ssl.endpoint.identification.algorithm", "https").lower() == "https"
        if values.get("enable.ssl.certificate.verification", "true").lower() == "false":
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        named = "ssl.certificate"
        _show_certificate(context, properties)
    except OSError as error:  # SSLError is one
        name = f"{named}.pem" if f"{named}.pem" in values else f"{named}.location"
        raise ConfigError(
            f"{properties.where(name)}: the certificate or its key cannot be used: {error.strerror or error}; "
            "name PEM files that can be read"
        ) from error
    return context


def _show_certificate(context: ssl.SSLContext, properties: Properties) -> None:
    password = properties.get("ssl.key.password") or ""
    chain, key = properties.get("ssl.certificate.location"), properties.get("ssl.key.location")
    if chain is not None and properties.get("ssl.key.pem") is None:
        context.load_cert_chain(Path(chain).expanduser(), None if key is None else Path(key).expanduser(), password)
    elif (text := pem_text(properties, "ssl.certificate")) is not None:
        # `ssl` reads keys from files alone; this one is gone again before anybody is connected to.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(f"{text}\n{pem_text(properties, 'ssl.key') or ''}")
            file.flush()
            context.load_cert_chain(file.name, password=password)
