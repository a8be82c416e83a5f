"""
Who asks an HTTP server that is no part of a node: a user of the cluster, who signs in there with the password it sends.

The brokers judge the password and the rights, so that users and ACLs exist once, and any Kafka cluster will do. What
was right is remembered for a minute, as a digest under a key that only this process has: a user who is removed, or who
loses a right, is out by then.
"""

import asyncio
import hmac
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from fluvial.cluster.sign_in import RejectedError
from fluvial.cluster.wire import ClusterLink, RefusedError
from fluvial.errors import FluvialError
from fluvial.kafka import KafkaCluster
from log_broker.core.security.acls import Operation
from log_broker.core.security.mechanism import SignInError
from log_broker.core.security.principal import Principal
from log_broker.server.net.http_sign_in import read_basic
from log_broker.server.net.sign_in import UsersUnknownError
from log_broker.server.process.log_limiter import RateLimitedLog
from log_broker.wire.apis import ApiKey

_log = logging.getLogger(__name__)

REMEMBERED_SECONDS = 60.0
REMEMBERED_MAX = 1_000
AT_ONCE_MAX = 4
"""So many sign in at the same time; a wrong password is held back by the broker, and holds one of these meanwhile."""
WAITING_MAX = 64

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What a sign-in found; `until` is by the clock of this process."""

    digest: bytes
    operations: frozenset[Operation]
    until: float


class ClusterUsers:
    """Tells who sends requests to an HTTP server; used in one event loop. `close` it at the end."""

    def __init__(self, cluster: KafkaCluster, *, about: str, clock: Clock = time.monotonic) -> None:
        """
        `cluster` is as this process reaches it, one that `has_passwords`; `about` names the server in the log.
        """
        assert cluster.has_passwords, "there are users to ask for"
        self._cluster = cluster
        self._about = about
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[frozenset[Operation]]] = {}
        self._threads = ThreadPoolExecutor(max_workers=AT_ONCE_MAX, thread_name_prefix="sign-in")
        self._trouble, self._lack = RateLimitedLog(_log, clock), RateLimitedLog(_log, clock)

    async def principal(self, authorization: str | None, certificate: object = None) -> Principal:
        """
        Return who sends a request with this header; certificates say nothing here.

        Raises SignInError, and UsersUnknownError while no broker answers or too many sign in.
        """
        if authorization is None:
            raise SignInError("no password")
        name, password = read_basic(authorization)
        digest = hmac.digest(self._key, b"%d %s %s" % (len(name), name.encode(), password), "sha256")
        known = self._known.get(name)
        if known is None or known.until <= self._clock() or not hmac.compare_digest(known.digest, digest):
            try:
                operations = await self._asked_once(digest, name, password)
            except FluvialError as error:
                self._lack.failed("%s cannot ask the cluster for its users: %s", self._about, error)
                raise UsersUnknownError("The cluster, whose users are asked for, does not answer") from error
            self._remember(name, digest, operations)
        return Principal(name)

    def may(self, principal: Principal, operation: Operation) -> bool:
        """Whether one that was returned may do that with the cluster, as of its sign-in."""
        known = self._known.get(principal.name)
        return known is not None and operation in known.operations

    async def refused(self, peer: str, reason: str) -> None:
        """Tell of a refusal; the broker has held it back."""
        self._trouble.failed("%s may not use %s: %s", peer, self._about, reason)

    def close(self) -> None:
        """End the threads; who waits for one is refused."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _asked_once(self, digest: bytes, name: str, password: bytes) -> frozenset[Operation]:
        """Sign in; a page sends many requests at once, and one sign-in is for all of them."""
        asking = self._asking.get(digest)
        if asking is None:
            if len(self._asking) >= WAITING_MAX:
                raise UsersUnknownError("Too many users are signing in; try again")
            loop = asyncio.get_running_loop()
            asking = self._asking[digest] = loop.create_task(self._in_thread(name, password))
            asking.add_done_callback(lambda done: self._asked(digest, done))
        return await asyncio.shield(asking)

    async def _in_thread(self, name: str, password: bytes) -> frozenset[Operation]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, operations_of, self._cluster, name, password)

    def _asked(self, digest: bytes, done: "asyncio.Task[frozenset[Operation]]") -> None:
        del self._asking[digest]
        if not done.cancelled():
            done.exception()  # who asked may be gone

    def _remember(self, name: str, digest: bytes, operations: frozenset[Operation]) -> None:
        self._known[name] = _Known(digest=digest, operations=operations, until=self._clock() + REMEMBERED_SECONDS)
        self._known.move_to_end(name)
        while len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)


def operations_of(cluster: KafkaCluster, name: str, password: bytes) -> frozenset[Operation]:
    """
    Sign in to a cluster and return what this user may do with it (KIP-430).

    Raises SignInError for a wrong name or password, and FluvialError where the cluster cannot say.
    """
    try:
        text = password.decode()
    except UnicodeDecodeError:
        raise SignInError("a password that is not UTF-8") from None
    try:
        with ClusterLink(cluster.as_user(name, text)) as link:
            answer = link.ask(ApiKey.DESCRIBE_CLUSTER, {"include_cluster_authorized_operations": True})
    except RejectedError as error:
        raise SignInError(str(error)) from None
    if answer.error_code:
        raise RefusedError("ask what a user may do", answer.error_code, answer.error_message)
    bits = answer.cluster_authorized_operations
    return frozenset(each for each in Operation if bits > 0 and bits >> each & 1)
