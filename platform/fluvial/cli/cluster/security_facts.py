"""What the security checklist of `fluvial cluster doctor` judges: settings of all brokers, certificates, files."""

import socket
import ssl
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fluvial.cli import terminal
from fluvial.config import Settings
from fluvial.errors import ConfigError, FluvialError

if TYPE_CHECKING:
    from fluvial.cluster.picture import Picture
    from fluvial.cluster.security_doctor import FileFacts, SecurityFacts
    from fluvial.cluster.wire import ClusterLink

SECONDS_MAX = 5.0
_SECONDS_A_DAY = 86_400
_KEYS = ("ssl.key.location", "ssl.keystore.location")


def security_facts(
    settings: Settings, cluster: "ClusterLink", picture: "Picture", *, try_passwords: bool = False
) -> "SecurityFacts":
    """Read what the rules check; a broker that does not answer has no settings here."""
    from fluvial.cluster.security_doctor import SecurityFacts

    held = broker_settings(cluster, picture)
    return SecurityFacts(
        settings=held,
        certificate_days=certificate_days(settings, picture),
        files=tuple(file_facts(settings)),
        known_passwords=known_passwords(settings, cluster, held) if try_passwords else (),
    )


def known_passwords(
    settings: Settings, cluster: "ClusterLink", held: Mapping[int, Mapping[str, str]]
) -> tuple[str, ...]:
    """
    Return the users, super users of the brokers' settings among them, who sign in with a password that is well known.

    Raises FluvialError where users cannot be listed, or nobody signs in by a password.
    """
    from fluvial.cluster.known_passwords import USERS_MAX, users_of, with_known_passwords

    if not settings.cluster.has_passwords:
        raise ConfigError("--try-passwords signs in by SCRAM or PLAIN, and this cluster is reached without either")
    named = {each.strip() for of in held.values() for each in of.get("super.users", "").split(";")}
    names = {*users_of(cluster), *(each.removeprefix("User:") for each in named if each.startswith("User:"))}
    if len(names) > USERS_MAX:
        terminal.say(f"passwords of {USERS_MAX} of {len(names)} users are tried, by their names")
    return tuple(with_known_passwords(settings.cluster, names))


def broker_settings(cluster: "ClusterLink", picture: "Picture") -> dict[int, dict[str, str]]:
    """Ask each broker for its own settings, which no other knows."""
    from log_broker.wire.apis import ApiKey

    found = {}
    for broker in picture.brokers.values():
        resource = {"resource_type": 4, "resource_name": str(broker.node_id), "configuration_keys": None}
        asked = {"resources": (resource,), "include_synonyms": False, "include_documentation": False}
        try:
            answer = cluster.ask_at(broker.address, ApiKey.DESCRIBE_CONFIGS, asked)
        except FluvialError:
            continue
        for result in answer.results:
            found[broker.node_id] = {each.name: each.value for each in result.configs if each.value is not None}
    return found


def certificate_days(settings: Settings, picture: "Picture") -> dict[str, float]:
    """Return for how many days the certificate of each broker is valid yet, where it shows one that is trusted."""
    from fluvial.cluster.sign_in import tls_of

    try:
        context = tls_of(settings.cluster)
    except FluvialError:
        context = None
    if context is None or context.verify_mode is ssl.CERT_NONE:
        return {}
    found = {}
    for broker in picture.brokers.values():
        try:
            with (
                socket.create_connection((broker.host, broker.port), timeout=SECONDS_MAX) as plain,
                context.wrap_socket(plain, server_hostname=broker.host) as secured,
            ):
                shown = secured.getpeercert() or {}
        except ssl.SSLCertVerificationError as error:
            if "expired" in error.verify_message:
                found[broker.address] = 0.0
            continue
        except OSError:
            continue
        if isinstance(ends := shown.get("notAfter"), str):
            found[broker.address] = (ssl.cert_time_to_seconds(ends) - time.time()) / _SECONDS_A_DAY
    return found


def file_facts(settings: Settings) -> "Iterator[FileFacts]":
    """Yield the modes of the local platform's folders and secrets, and of the keys that clients here are given."""
    from fluvial.cluster.security_doctor import FileFacts
    from fluvial.local.state import SECURITY, Platform

    paths: list[Path] = []
    if settings.local and (platform := Platform.load(settings.data_dir)) is not None:
        folder = settings.data_dir
        paths += [folder, *(folder / node.data_dir for node in platform.nodes)]
        paths += [folder / SECURITY, *sorted(folder.glob(f"{SECURITY}/*"))]
    for name in _KEYS:
        if (given := settings.kafka_properties.get(name)) is not None:
            paths.append(Path(given))
    for path in dict.fromkeys(paths):
        try:
            yield FileFacts(path=str(path), mode=stat.S_IMODE(path.stat().st_mode))
        except OSError:
            continue
