"""What `fluvial up --secure` signs passes the strict check of chains that Python makes from 3.13 on, and others may."""

import ssl
from pathlib import Path

from fluvial.local.security import secure


def test_the_chain_is_whole(tmp_path: Path) -> None:
    folder = secure(tmp_path / "data").parent
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(folder / "node.pem")
    strict = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    strict.verify_flags |= ssl.VERIFY_X509_STRICT
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = strict.wrap_bio(back, there, server_hostname="localhost")
    server = served.wrap_bio(there, back, server_side=True)
    for _ in range(3):
        for end in (client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert client.getpeercert()["subject"] == ((("commonName", "node"),),)  # type: ignore[index]
