"""SCRAM as a client does it, held to the examples of RFC 7677 and to a server written out here."""

import base64
import hashlib
import hmac

import pytest

from fluvial.cluster.sign_in import SignInError, scram

# RFC 7677, section 3: the exchange of "user" with the password "pencil".
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_the_exchange_of_the_rfc() -> None:
    client = scram("sha256", "user", "pencil", NONCE)
    assert next(client) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert client.send(SERVER_FIRST) == CLIENT_FINAL
    with pytest.raises(StopIteration):
        client.send(SERVER_FINAL)


def test_a_server_that_does_not_know_the_password_is_found_out() -> None:
    client = scram("sha256", "user", "pencil", NONCE)
    next(client)
    client.send(SERVER_FIRST)
    with pytest.raises(SignInError, match="not who it should be"):
        client.send(b"v=" + base64.b64encode(bytes(32)))


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"e=other-error",
        b"r=someone-elses-nonce,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        SERVER_FIRST.replace(b"i=4096", b"i=0"),
        SERVER_FIRST.replace(b"i=4096", b"i=99999999"),
    ],
)
def test_an_answer_that_is_none_is_refused(answer: bytes) -> None:
    client = scram("sha256", "user", "pencil", NONCE)
    next(client)
    with pytest.raises(SignInError, match="none of a SCRAM exchange"):
        client.send(answer)


def test_names_are_escaped_and_sha_512_works() -> None:
    client = scram("sha512", "a=b,c", "pässwörd", "abc")
    bare = next(client).removeprefix(b"n,,")
    assert bare == b"n=a=3Db=2Cc,r=abc"
    salt, nonce = b"salt", b"abcdef"
    server_first = b"r=" + nonce + b",s=" + base64.b64encode(salt) + b",i=4096"
    final = client.send(server_first)
    salted = hashlib.pbkdf2_hmac("sha512", "pässwörd".encode(), salt, 4096)
    stored = hashlib.sha512(hmac.digest(salted, b"Client Key", "sha512")).digest()
    message = b",".join((bare, server_first, final.partition(b",p=")[0]))
    signature = hmac.digest(stored, message, "sha512")
    proof = base64.b64decode(final.partition(b",p=")[2])
    client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
    assert hashlib.sha512(client_key).digest() == stored, "what a server checks a proof by"
