"""
Sign-in on one connection, whatever the mechanism: SaslHandshake, SaslAuthenticate, and doing it again (KIP-368).

    NEW         --handshake-->     EXCHANGING
    EXCHANGING  --authenticate-->  EXCHANGING, SIGNED_IN
    SIGNED_IN   --handshake-->     EXCHANGING   as the principal that it is, until the exchange has ended
    any         --refusal-->       REFUSED      the connection ends once the answer is sent

A handshake that comes while the last one is less than a second ago, or to a listener whose sign-ins never end, is
answered with an error and changes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from log_broker.core.security.mechanism import Challenge, Check, Exchange, Mechanisms, SignedIn, SignInError, Step
from log_broker.core.security.principal import Principal
from log_broker.errors import ErrorCode

REPEAT_MS_MIN = 1000
REFUSED_TEXT = "Authentication failed: the credentials are not valid."
LIFETIMES_FROM = 1  # of SaslAuthenticate: clients of earlier versions do not sign in again


class State(Enum):
    """Where a connection's sign-in stands."""

    NEW = auto()
    EXCHANGING = auto()
    SIGNED_IN = auto()
    REFUSED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the client is told; `reason` is for the log, and None where nothing was refused."""

    error: ErrorCode = ErrorCode.NONE
    text: str | None = None
    data: bytes = b""
    lifetime_ms: int = 0
    reason: str | None = None


class Sasl:
    """The sign-in of one connection."""

    def __init__(self, mechanisms: Mechanisms, *, lifetime_ms_max: int = 0) -> None:
        """Who signed in must do so again within `lifetime_ms_max`; 0 is never."""
        self.state = State.NEW
        self.principal: Principal | None = None  # once signed in
        self.mechanism = ""
        self.expires_ms: int | None = None  # when the sign-in ends
        self.is_raw = False  # after SaslHandshake v0: tokens come without a request around them
        self._mechanisms = mechanisms
        self._lifetime_ms_max = lifetime_ms_max
        self._exchange: Exchange | None = None
        self._asked = ""  # the mechanism of the exchange
        self._began_ms: int | None = None  # the last handshake of one that is signed in
        self._version = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The mechanisms that may be asked for."""
        return tuple(self._mechanisms)

    def handshake(self, mechanism: str, version: int, now_ms: int) -> Reply:
        """Take the choice of a mechanism."""
        if self.state not in {State.NEW, State.SIGNED_IN} or (
            self.state is State.SIGNED_IN and not self._may_repeat(now_ms)
        ):
            # One that is signed in stays so: nothing has been tried yet.
            reply = Reply(error=ErrorCode.ILLEGAL_SASL_STATE, text="This is no time for a SaslHandshake.")
            return reply if self.state is State.SIGNED_IN else self._refuse(reply, "a second SaslHandshake")
        maker = self._mechanisms.get(mechanism)
        if maker is None:
            reply = Reply(error=ErrorCode.UNSUPPORTED_SASL_MECHANISM)
            return self._refuse(reply, f"mechanism {mechanism[:100]!r} is not enabled")
        if self.state is State.SIGNED_IN:
            self._began_ms = now_ms
        self.is_raw = version == 0 and self.state is State.NEW
        self._asked, self._exchange = mechanism, maker()
        self.state = State.EXCHANGING
        return Reply()

    def authenticate(self, data: bytes, version: int, now_ms: int) -> Reply | Check:
        """Take a message of the mechanism; the work of a Check is to be handed to `checked`."""
        exchange = self._exchange
        if self.state is not State.EXCHANGING or exchange is None:
            reply = Reply(error=ErrorCode.ILLEGAL_SASL_STATE, text="A SaslHandshake comes before SaslAuthenticate.")
            return reply if self.state is State.SIGNED_IN else self._refuse(reply, "SaslAuthenticate came too early")
        self._version = version
        if self.principal is not None and self._asked != self.mechanism:
            return self._refused(SignInError(f"signing in again by {self._asked} after {self.mechanism}"))
        return self._step(lambda: exchange.step(data), now_ms)

    def checked(self, result: Callable[[], SignedIn], now_ms: int) -> Reply:
        """Take the result of a Check: `result` returns it, or raises SignInError."""
        reply = self._step(result, now_ms)
        assert isinstance(reply, Reply), "a check ends"
        return reply

    def interrupted(self, request: str) -> Reply:
        """Take another request than those of the exchange that is under way."""
        text = f"{request} came while signing in."
        return self._refuse(Reply(error=ErrorCode.ILLEGAL_SASL_STATE, text=text), text)

    def is_expired(self, now_ms: int) -> bool:
        """Whether whoever is signed in had to sign in again by now."""
        return self.expires_ms is not None and now_ms >= self.expires_ms

    def _step(self, step: Callable[[], Step], now_ms: int) -> Reply | Check:
        try:
            result = step()
        except SignInError as error:
            return self._refused(error)
        match result:
            case Check():
                return result
            case Challenge():
                return Reply(data=result.data)
            case SignedIn():
                return self._signed_in(result, now_ms)

    def _signed_in(self, result: SignedIn, now_ms: int) -> Reply:
        if self.principal is not None and self.principal != result.principal:
            return self._refused(SignInError(f"signing in again as {result.principal} after {self.principal}"))
        lifetimes = [each for each in (self._lifetime_ms_max or None, result.lifetime_ms) if each is not None]
        self.state = State.SIGNED_IN
        self.principal, self.mechanism, self._exchange = result.principal, self._asked, None
        if self._version < LIFETIMES_FROM or not lifetimes:
            self.expires_ms = None
            return Reply(data=result.data)
        self.expires_ms = now_ms + min(lifetimes)
        return Reply(data=result.data, lifetime_ms=min(lifetimes))

    def _may_repeat(self, now_ms: int) -> bool:
        if self.expires_ms is None:
            return False
        return self._began_ms is None or now_ms - self._began_ms >= REPEAT_MS_MIN

    def _refused(self, error: SignInError) -> Reply:
        return self._refuse(Reply(error=ErrorCode.SASL_AUTHENTICATION_FAILED, text=REFUSED_TEXT), str(error))

    def _refuse(self, reply: Reply, reason: str) -> Reply:
        self.state, self._exchange = State.REFUSED, None
        return Reply(error=reply.error, text=reply.text, reason=reason)
