"""
A local platform that is secured: an authority of its own, a certificate for its nodes, and the users to begin with.

All of it stands in `<data directory>/security`, for its user alone: `server.properties`, which every node is started
with, and `client.properties`, by which the commands here and any other client reach the platform.
"""

import os
import secrets
from pathlib import Path

from fluvial.extras import needed
from fluvial.local.errors import DataDirError, LocalPlatformError
from fluvial.local.rights import FILE_MODE, make_private
from fluvial.local.state import SECURITY, Platform, client_properties

ADMIN = "admin"
NODE = "node"
_PASSWORD_BYTES = 24
_DAYS_VALID = 3650
_CLIENT = """\
# How the local platform is reached. Whoever can read this file can do everything there.
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.username={name}
sasl.password={password}
ssl.ca.location={authority}
# Its schema registry: the same user.
basic.auth.credentials.source=USER_INFO
basic.auth.user.info={name}:{password}
schema.registry.ssl.ca.location={authority}
"""
_SERVER = """\
# What every node of the local platform is started with.
security.inter.broker.protocol=SASL_SSL
sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512
sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
  username="{node}" password="{between}" user_{name}="{password}";
authorizer.class.name=fluvial
super.users=User:{node};User:{name}
fluvial.sign.in.secret={secret}
ssl.keystore.location={certificate}
ssl.truststore.location={authority}
"""


def check_securable(data_dir: Path) -> None:
    """
    Raise what would keep `secure` from securing a platform there.

    That is LocalPlatformError for one in plain text, and MissingExtraError without the package `cryptography`.
    """
    if client_properties(data_dir) is not None:
        return
    if Platform.load(data_dir) is not None:
        raise LocalPlatformError(
            f"the platform in {data_dir} is in plain text, and --secure is for a new one; name another folder with "
            "--data-dir, or in FLUVIAL_DATA_DIR"
        )
    with needed():
        import cryptography  # noqa: F401


def secure(data_dir: Path) -> Path:
    """
    Make certificates, users and both files, and return the one for clients; what is there already stays.

    Raises DataDirError, and what `check_securable` raises.
    """
    check_securable(data_dir)
    known = client_properties(data_dir)
    if known is not None:
        return known
    folder = data_dir.absolute() / SECURITY
    try:
        make_private(data_dir, mark=SECURITY)
        make_private(folder, mark="server.properties")
        authority, certificate = folder / "ca.pem", folder / "node.pem"
        _write_certificates(authority, certificate)
        password, between, secret = (secrets.token_urlsafe(_PASSWORD_BYTES) for _ in range(3))
        server = _SERVER.format(
            node=NODE,
            between=between,
            name=ADMIN,
            password=password,
            certificate=certificate,
            authority=authority,
            secret=secret,
        )
        _write(folder / "server.properties", server.encode())
        # The last one: with it the platform is secured.
        client = folder / "client.properties"
        _write(client, _CLIENT.format(name=ADMIN, password=password, authority=authority).encode())
        return client
    except OSError as error:
        raise DataDirError(data_dir, error) from error


def _write(path: Path, content: bytes) -> None:
    """Write a file that its user alone may read."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "wb") as file:
        file.write(content)


def _write_certificates(authority: Path, certificate: Path) -> None:
    """Write the certificate of an authority, whose key nobody keeps, and one of it for the nodes, with its key."""
    from fluvial.local.certificates import Authority, common_name

    made = Authority(f"fluvial local {secrets.token_hex(4)}", _DAYS_VALID)
    _write(authority, made.certificate)
    _write(certificate, b"".join(made.issue(common_name(NODE))))
