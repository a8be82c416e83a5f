import pytest

from log_broker.core.security.credentials import ScramMechanism
from log_broker.core.security.mechanism import Check, SignedIn, SignInError
from log_broker.core.security.plain import PlainExchange, PlainPasswords
from log_broker.core.security.scram import ITERATIONS_MIN, credential_of

SHA_256, SHA_512 = ScramMechanism


class Table:
    def __init__(self):
        self.kept = {}

    def set(self, name, password, mechanism=SHA_256):
        self.kept[name, mechanism] = credential_of(password, b"salt", ITERATIONS_MIN, mechanism)

    def scram(self, name, mechanism):
        return self.kept.get((name, mechanism))


@pytest.fixture
def table():
    table = Table()
    table.set("alice", b"secret")
    return table


@pytest.fixture
def passwords(table):
    return PlainPasswords(table, key=b"key", secret=b"shared")


def step(passwords, message):
    return PlainExchange(passwords).step(message)


def test_the_first_sign_in_takes_a_thread_and_the_next_one_does_not(passwords):
    check = step(passwords, b"\0alice\0secret")
    assert isinstance(check, Check)
    assert str(check.work().principal) == "User:alice"
    assert isinstance(step(passwords, b"alice\0alice\0secret"), SignedIn)
    assert isinstance(step(passwords, b"\0alice\0other"), Check)


@pytest.mark.parametrize("message", [b"\0alice\0wrong", b"\0bob\0secret"])
def test_a_wrong_password_and_an_unknown_name_are_refused_in_the_thread(passwords, message):
    for _ in range(2):
        with pytest.raises(SignInError):
            step(passwords, message).work()


def test_a_changed_password_is_asked_for_at_once(table, passwords):
    step(passwords, b"\0alice\0secret").work()
    table.set("alice", b"changed")
    with pytest.raises(SignInError):
        step(passwords, b"\0alice\0secret").work()
    table.kept.clear()
    with pytest.raises(SignInError):
        step(passwords, b"\0alice\0secret").work()


def test_either_mechanism_of_a_user_will_do(table, passwords):
    table.set("alice", b"long", SHA_512)
    for password in (b"secret", b"long"):
        assert step(passwords, b"\0alice\0" + password).work().principal.name == "alice"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"alice",
        b"\0alice",
        b"\0alice\0",
        b"\0\0secret",
        b"bob\0alice\0secret",
        b"\0alice\0a\0b",
        b"\0\xff\0x",
        b"\0a\0" + b"x" * 9000,
    ],
)
def test_a_message_that_is_none_is_refused_without_a_thread(passwords, message):
    with pytest.raises(SignInError):
        step(passwords, message)
