"""
A PEM file of a certificate and its key, in the two parts that gRPC takes.
"""

import re
from pathlib import Path

_BLOCK = re.compile(rb"-----BEGIN (?P<what>[A-Z ]+)-----.*?-----END (?P=what)-----\n?", re.DOTALL)


def certificate_and_key(path: Path) -> tuple[bytes, bytes]:
    """
    The certificates with those that signed them, and the key.
    """
    blocks = [(match["what"], match[0]) for match in _BLOCK.finditer(path.read_bytes())]
    chain = b"".join(block for what, block in blocks if what == b"CERTIFICATE")
    key = b"".join(block for what, block in blocks if what.endswith(b"PRIVATE KEY"))
    return chain, key
