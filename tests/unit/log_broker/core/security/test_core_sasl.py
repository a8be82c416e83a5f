import pytest

from log_broker.core.security.mechanism import Challenge, Check, SignedIn, SignInError
from log_broker.core.security.principal import Principal
from log_broker.core.security.sasl import REFUSED_TEXT, Sasl, State
from log_broker.errors import ErrorCode


class Talk:
    """A mechanism of two messages: `hello` and then a name, or `slow` for a check."""

    def __init__(self, lifetime_ms=None):
        self._greeted = False
        self._lifetime_ms = lifetime_ms

    def step(self, data):
        if data == b"hello" and not self._greeted:
            self._greeted = True
            return Challenge(data=b"who?")
        if not self._greeted or data == b"bad":
            raise SignInError("a secret reason")
        result = SignedIn(principal=Principal(data.decode()), data=b"welcome", lifetime_ms=self._lifetime_ms)
        return Check(lambda: result) if data == b"slow" else result


def sasl(lifetime_ms_max=0, lifetime_ms=None):
    return Sasl({"TALK": lambda: Talk(lifetime_ms), "OTHER": Talk}, lifetime_ms_max=lifetime_ms_max)


def sign_in(it, name=b"alice", now_ms=0, version=2, mechanism="TALK"):
    assert it.handshake(mechanism, 1, now_ms).error is ErrorCode.NONE
    assert it.authenticate(b"hello", version, now_ms).data == b"who?"
    return it.authenticate(name, version, now_ms)


def test_who_signs_in_has_a_principal():
    it = sasl()
    reply = sign_in(it)
    assert (reply.error, reply.data, reply.lifetime_ms) == (ErrorCode.NONE, b"welcome", 0)
    assert str(it.principal) == "User:alice"
    assert it.state is State.SIGNED_IN
    assert not it.is_expired(10**12)


def test_a_refusal_says_one_text_and_ends_it():
    it = sasl()
    reply = sign_in(it, b"bad")
    assert (reply.error, reply.text, reply.reason) == (
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        REFUSED_TEXT,
        "a secret reason",
    )
    for again in (it.handshake("TALK", 1, 0), it.authenticate(b"hello", 2, 0)):
        assert again.error is ErrorCode.ILLEGAL_SASL_STATE
        assert it.principal is None


def test_an_unknown_mechanism_is_refused():
    it = sasl()
    assert it.handshake("GSSAPI", 1, 0).error is ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert it.state is State.REFUSED
    assert it.names == ("TALK", "OTHER")


def test_a_token_before_the_handshake_and_a_second_handshake_are_refused():
    early, twice = sasl(), sasl()
    assert early.authenticate(b"hello", 2, 0).error is ErrorCode.ILLEGAL_SASL_STATE
    assert early.state is State.REFUSED
    twice.handshake("TALK", 1, 0)
    assert twice.handshake("TALK", 1, 0).error is ErrorCode.ILLEGAL_SASL_STATE
    assert twice.state is State.REFUSED


def test_a_check_ends_in_its_result():
    it = sasl()
    check = sign_in(it, b"slow")
    assert isinstance(check, Check)
    assert it.principal is None
    assert it.checked(check.work, 0).data == b"welcome"
    assert it.principal is not None

    def refused():
        raise SignInError("no")

    other = sasl()
    sign_in(other, b"slow")
    assert other.checked(refused, 0).error is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert other.principal is None


@pytest.mark.parametrize(
    ("most", "own", "lives"), [(5000, None, 5000), (5000, 3000, 3000), (0, 3000, 3000), (0, None, 0)]
)
def test_the_shorter_lifetime_counts(most, own, lives):
    it = sasl(most, own)
    assert sign_in(it, now_ms=100).lifetime_ms == lives
    assert it.expires_ms == (100 + lives if lives else None)


def test_clients_that_cannot_sign_in_again_need_not():
    it = sasl(5000)
    assert sign_in(it, version=0).lifetime_ms == 0
    assert not it.is_expired(10**12)


def test_signing_in_again_as_the_same_begins_a_new_lifetime():
    it = sasl(5000)
    sign_in(it)
    assert it.is_expired(5000)
    assert sign_in(it, now_ms=4000).error is ErrorCode.NONE
    assert it.expires_ms == 9000


def test_signing_in_again_within_a_second_is_refused_and_changes_nothing():
    it = sasl(5000)
    sign_in(it)
    sign_in(it, now_ms=1000)
    assert it.handshake("TALK", 1, 1999).error is ErrorCode.ILLEGAL_SASL_STATE
    assert it.state is State.SIGNED_IN
    assert it.handshake("TALK", 1, 2000).error is ErrorCode.NONE


def test_where_sign_ins_do_not_end_none_is_repeated():
    it = sasl()
    sign_in(it)
    assert it.handshake("TALK", 1, 5000).error is ErrorCode.ILLEGAL_SASL_STATE
    assert it.authenticate(b"hello", 2, 5000).error is ErrorCode.ILLEGAL_SASL_STATE
    assert it.state is State.SIGNED_IN


@pytest.mark.parametrize(("name", "mechanism"), [(b"bob", "TALK"), (b"alice", "OTHER")])
def test_neither_principal_nor_mechanism_may_change(name, mechanism):
    it = sasl(5000)
    sign_in(it)
    it.handshake(mechanism, 1, 2000)
    reply = it.authenticate(b"hello", 2, 2000)
    if reply.error is ErrorCode.NONE:
        reply = it.authenticate(name, 2, 2000)
    assert reply.error is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert it.state is State.REFUSED
    assert str(it.principal) == "User:alice"


def test_raw_tokens_follow_the_first_handshake_of_version_0_only():
    it = sasl(5000)
    it.handshake("TALK", 0, 0)
    assert it.is_raw
    again = sasl(5000)
    sign_in(again)
    again.handshake("TALK", 0, 2000)
    assert not again.is_raw
