import hashlib
import hmac
from base64 import b64decode, b64encode

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from log_broker.core.security.credentials import ScramMechanism
from log_broker.core.security.mechanism import Challenge, SignedIn, SignInError
from log_broker.core.security.scram import (
    ITERATIONS_MIN,
    MESSAGE_BYTES_MAX,
    ScramClient,
    ScramExchange,
    credential_of,
    credential_of_salted,
    salted,
)
from log_broker.core.security.users import FirstOf, GivenUsers, Nobody

SHA_256, SHA_512 = ScramMechanism
SECRET = b"all nodes share it"


class Table:
    def __init__(self, name, mechanism, credential):
        self.known, self.credential = (name, mechanism), credential

    def scram(self, name, mechanism):
        return self.credential if (name, mechanism) == self.known else None


def users(mechanism=SHA_256, name="user", password=b"pencil", salt=b"salt" * 4):
    return Table(name, mechanism, credential_of(password, salt, ITERATIONS_MIN, mechanism))


def exchange(known=None, mechanism=SHA_256, nonce="server"):
    return ScramExchange(mechanism, known or users(mechanism), nonce=nonce, secret=SECRET)


def signed_in(server, client):
    challenge = server.step(client.first())
    assert isinstance(challenge, Challenge)
    result = server.step(client.final(challenge.data))
    assert isinstance(result, SignedIn)
    client.verify(result.data)
    return result.principal


def test_the_example_of_rfc_7677():
    salt = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    server = exchange(users(salt=salt), nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = server.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == Challenge(
        data=b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = server.step(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert final.data == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert str(final.principal) == "User:user"


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize("name", ["user", "a=b,c", "Jürgen", "x" * 200])
def test_both_ends_agree(mechanism, name):
    server = exchange(users(mechanism, name), mechanism)
    assert signed_in(server, ScramClient(mechanism, name, b"pencil", nonce="abc")).name == name


def test_a_password_that_was_salted_elsewhere_is_the_same_password():
    key = salted(b"pencil", b"salt", 5000, SHA_512)
    assert credential_of_salted(key, b"salt", 5000, SHA_512) == credential_of(b"pencil", b"salt", 5000, SHA_512)


def test_a_wrong_password_and_an_unknown_user_are_refused_after_the_same_steps():
    for name, password in (("user", b"pen"), ("nobody", b"pencil")):
        client = ScramClient(SHA_256, name, password, nonce="abc")
        server = exchange()
        challenge = server.step(client.first())
        with pytest.raises(SignInError):
            server.step(client.final(challenge.data))


def test_a_name_that_nobody_has_is_challenged_the_same_each_time_and_by_each_node():
    asked = b"n,,n=nobody,r=abc"
    assert exchange(nonce="s").step(asked) == exchange(users(name="other"), nonce="s").step(asked)
    assert exchange(nonce="s").step(asked) != exchange(nonce="s").step(b"n,,n=nobody2,r=abc")


def test_a_message_is_good_for_its_own_exchange_only():
    client = ScramClient(SHA_256, "user", b"pencil", nonce="abc")
    server = exchange(nonce="one")
    first = client.first()
    final = client.final(server.step(first).data)
    assert isinstance(server.step(final), SignedIn)
    other = exchange(nonce="two")
    other.step(first)
    with pytest.raises(SignInError, match="nonce"):
        other.step(final)


def test_librdkafka_before_2_6_1_signs_in_though_it_says_its_own_nonce_twice():
    server = exchange(nonce="one")
    challenge = server.step(b"n,,n=user,r=abc").data.decode()
    unproven = "c=biws,r=abcabcone"
    key = hmac.digest(salted(b"pencil", b"salt" * 4, ITERATIONS_MIN, SHA_256), b"Client Key", "sha256")
    signed = hmac.digest(hashlib.sha256(key).digest(), f"n=user,r=abc,{challenge},{unproven}".encode(), "sha256")
    proof = b64encode(bytes(one ^ other for one, other in zip(key, signed, strict=True))).decode()
    assert isinstance(server.step(f"{unproven},p={proof}".encode()), SignedIn)


@pytest.mark.parametrize("nonce", ["one", "xabcone", "abcabcabcone", "abcabcon", "abc", "abcone2"])
def test_no_other_nonce_is_taken(nonce):
    server = exchange(nonce="one")
    server.step(b"n,,n=user,r=abc")
    with pytest.raises(SignInError, match="nonce"):
        server.step(f"c=biws,r={nonce},p={b64encode(bytes(32)).decode()}".encode())


def test_the_client_demands_that_the_server_knows_the_user():
    client = ScramClient(SHA_256, "user", b"pencil", nonce="abc")
    client.final(exchange().step(client.first()).data)
    with pytest.raises(SignInError):
        client.verify(b"v=" + b64encode(bytes(32)))
    with pytest.raises(SignInError, match="iterations"):
        client.final(b"r=abcdef,s=c2FsdA==,i=4095")
    with pytest.raises(SignInError, match="this exchange"):
        client.final(b"r=abc,s=c2FsdA==,i=4096")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,n=,r=abc",
        b"n,,n=user,r=",
        b"n,,n=us=er,r=abc",
        b"n,,r=abc,n=user",
        b"n,,m=ext,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"n,a=admin,n=user,r=abc",
        b"n,,n=user,r=a\x00c",
        b"n,,n=user,r=\xff",
        b"n,,n=user,r=" + b"a" * 513,
        b"n,,n=" + b"u" * 2000 + b",r=abc",
        b"n,,n=user,r=" + b"a" * MESSAGE_BYTES_MAX,
    ],
)
def test_a_first_message_that_is_none_is_refused(message):
    with pytest.raises(SignInError):
        exchange().step(message)


@pytest.mark.parametrize("header", [b"n,,", b"y,,", b"n,a=user,"])
def test_headers_that_ask_for_nothing_we_lack(header):
    assert isinstance(exchange().step(header + b"n=user,r=abc"), Challenge)


@pytest.mark.parametrize(
    "change",
    [
        lambda final: final.replace(b"c=biws", b"c=eSws"),
        lambda final: final.replace(b"c=biws", b"c=!"),
        lambda final: final.replace(b"r=abc", b"r=abd"),
        lambda final: final[:-4] + b"AAA=",
        lambda final: final[: final.index(b",p=")],
        lambda final: final + b",x=1",
        lambda final: final[:-12],
        lambda final: b"",
    ],
)
def test_a_last_message_that_was_changed_is_refused(change):
    client = ScramClient(SHA_256, "user", b"pencil", nonce="abc")
    server = exchange()
    final = client.final(server.step(client.first()).data)
    with pytest.raises(SignInError):
        server.step(change(final))


@drawn(st.lists(st.binary(max_size=60) | st.text(alphabet="n,r=aypcibws+/", max_size=40).map(str.encode), max_size=3))
def test_whatever_comes_nobody_is_signed_in(messages):
    server = exchange()
    for message in messages:
        try:
            assert isinstance(server.step(message), Challenge)
        except SignInError:
            return


def test_a_name_of_the_first_place_has_one_password():
    first, second = users(SHA_256, "admin"), users(SHA_512, "admin", b"other")
    both = FirstOf(first, second)
    assert both.scram("admin", SHA_256) is not None
    assert both.scram("admin", SHA_512) is None
    assert FirstOf(Nobody(), second).scram("admin", SHA_512) is not None


def test_a_password_of_the_settings_signs_in_by_either_mechanism():
    given = GivenUsers({"node": "secret"}, lambda name, word, kind: credential_of(word, b"salt", ITERATIONS_MIN, kind))
    for mechanism in ScramMechanism:
        client = ScramClient(mechanism, "node", b"secret", nonce="abc")
        assert signed_in(exchange(given, mechanism), client).name == "node"
    assert given.scram("other", SHA_256) is None
