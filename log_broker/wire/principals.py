"""The principal of a request that a node passes on: Kafka's DefaultPrincipalData, behind its version (KIP-590)."""

import struct

from log_broker.core.security.principal import Principal
from log_broker.records.varint import write_uvarint
from log_broker.wire.reading import MalformedRequestError, Reader

VERSION = 0
_VERSION = struct.Struct(">h")


def write_principal(principal: Principal) -> bytes:
    """Return a principal's bytes."""
    out = bytearray(_VERSION.pack(VERSION))
    for text in (principal.kind, principal.name):
        encoded = text.encode()
        write_uvarint(out, len(encoded) + 1)
        out += encoded
    out += b"\0\0"  # not signed in by a delegation token; no tagged fields
    return bytes(out)


def read_principal(data: bytes) -> Principal:
    """Return the principal of such bytes; raises MalformedRequestError."""
    try:
        (version,) = _VERSION.unpack_from(data)
        if version != VERSION:
            raise MalformedRequestError(f"a principal of version {version}")
        reader = Reader(memoryview(data)[_VERSION.size :], flexible=True)
        kind, name = reader.string().decode(), reader.string().decode()
        return Principal.parse(f"{kind}:{name}")
    except (struct.error, IndexError, ValueError) as error:
        raise MalformedRequestError(f"a principal: {error}") from None
