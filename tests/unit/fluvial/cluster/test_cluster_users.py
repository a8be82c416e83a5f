"""Users of a cluster who ask an HTTP server: a broker judges their passwords and rights, once a minute."""

import asyncio
import base64
import socket
from collections.abc import Iterator

import pytest
from secured_broker import PASSWORDS, cluster_at, secured_broker

from fluvial.cluster.users import AT_ONCE_MAX, REMEMBERED_SECONDS, WAITING_MAX, ClusterUsers
from fluvial.kafka import KafkaCluster
from log_broker.core.security.acls import Operation
from log_broker.core.security.mechanism import SignInError
from log_broker.core.security.principal import Principal
from log_broker.server.embedded import EmbeddedBroker
from log_broker.server.net.sign_in import UsersUnknownError

Secured = tuple[EmbeddedBroker, KafkaCluster]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    with secured_broker() as running:
        yield running


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def users(secured: Secured, clock: Clock) -> Iterator[ClusterUsers]:
    made = ClusterUsers(secured[1], about="a page", clock=clock)
    yield made
    made.close()


def basic(name: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"


def signed_in(secured: Secured) -> int:
    return secured[0].node.counters.sign_ins


@pytest.mark.parametrize(
    ("name", "may"),
    [("ada", {Operation.DESCRIBE, Operation.ALTER}), ("eye", {Operation.DESCRIBE}), ("bob", set())],
)
async def test_who_signs_in_may_what_acls_say(users: ClusterUsers, name: str, may: set[Operation]) -> None:
    found = await users.principal(basic(name, PASSWORDS[name]))
    assert found == Principal(name)
    assert {each for each in (Operation.DESCRIBE, Operation.ALTER) if users.may(found, each)} == may


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer ada",
        "Basic ada",
        basic("ada", ""),
        basic("", "ada's"),
        basic("ada", "bob's"),
        basic("nobody", "x"),
        basic("a,d=a\x00\n", "x"),
        f"Basic {base64.b64encode(b'ada:' + bytes([255, 254])).decode()}",
        basic("ada", "x" * 5000),
    ],
    ids=range(11),
)
async def test_who_cannot_say_who_they_are_is_refused(users: ClusterUsers, header: str | None) -> None:
    with pytest.raises(SignInError):
        await users.principal(header)


async def test_many_requests_of_one_user_are_one_sign_in(users: ClusterUsers, secured: Secured, clock: Clock) -> None:
    before = signed_in(secured)
    await asyncio.gather(*(users.principal(basic("ada", "ada's")) for _ in range(20)))
    assert signed_in(secured) == before + 1
    clock.now += REMEMBERED_SECONDS / 2
    await users.principal(basic("ada", "ada's"))
    assert signed_in(secured) == before + 1
    with pytest.raises(SignInError):
        await users.principal(basic("ada", "eye's"))
    clock.now += REMEMBERED_SECONDS
    await users.principal(basic("ada", "ada's"))
    assert signed_in(secured) == before + 2


async def test_who_was_never_asked_for_may_nothing(users: ClusterUsers) -> None:
    assert not users.may(Principal("ada"), Operation.DESCRIBE)


async def test_nobody_gets_in_while_no_broker_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        servers = f"127.0.0.1:{taken.getsockname()[1]}"
    users = ClusterUsers(cluster_at(servers), about="a page")
    with pytest.raises(UsersUnknownError) as refused:
        await users.principal(basic("ada", "ada's"))
    assert servers not in str(refused.value), "a stranger is told nothing of the cluster"
    users.close()


async def test_strangers_do_not_pile_up() -> None:
    # Takes connections in and says nothing.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        users = ClusterUsers(cluster_at(f"127.0.0.1:{silent.getsockname()[1]}"), about="a page")
        waiting = [asyncio.create_task(users.principal(basic(f"user-{n}", "x"))) for n in range(WAITING_MAX)]
        for _ in range(3):  # each is a task that begins another
            await asyncio.sleep(0)
        assert AT_ONCE_MAX < WAITING_MAX
        with pytest.raises(UsersUnknownError, match="Too many"):
            await users.principal(basic("one-more", "x"))
        users.close()
    refused = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(each, UsersUnknownError | asyncio.CancelledError) for each in refused), refused
