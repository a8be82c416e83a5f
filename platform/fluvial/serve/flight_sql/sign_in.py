"""
Who may ask by Flight: users of the cluster, as over HTTP. Without users nobody is asked.

A client sends its name and password with the handshake and gets a token for its other calls. The token is the name and
the password again, as HTTP Basic has them: the server keeps nothing, and who is removed is out within a minute.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from pyarrow import flight

from fluvial.cluster.users import ClusterUsers
from log_broker.core.security.acls import Operation
from log_broker.core.security.mechanism import SignInError
from log_broker.server.net.sign_in import UsersUnknownError

_BASIC, _BEARER = "Basic ", "Bearer "
_HEADER = "authorization"
_PATIENCE_S = 60.0


class Handshakes(flight.ServerAuthHandler):  # type: ignore[misc]
    """
    Lets every handshake pass: whose it is says its header, as of every other call.
    """

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        """
        Do nothing.
        """

    def is_valid(self, token: bytes) -> bytes:
        """
        Let the call pass; nobody has a name here.
        """
        return b""


class SignIn(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """
    Lets calls pass whose sender may DESCRIBE the cluster; without users all.
    """

    def __init__(self, users: ClusterUsers | None, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._users = users
        self._loop = loop

    def start_call(self, info: Any, headers: Mapping[str, Any]) -> "_Token | None":
        """
        Ask who it is. Raises an error of Flight's.
        """
        authorization = _authorization(headers)
        if self._users is not None:
            asking = asyncio.run_coroutine_threadsafe(self._admit(self._users, authorization), self._loop)
            try:
                asking.result(_PATIENCE_S)
            except TimeoutError:
                asking.cancel()
                raise flight.FlightUnavailableError("the cluster, whose users are asked for, does not answer") from None
        return None if authorization is None else _Token(authorization)

    async def _admit(self, users: ClusterUsers, authorization: str | None) -> None:
        try:
            principal = await users.principal(authorization)
        except UsersUnknownError as error:
            raise flight.FlightUnavailableError(str(error)) from None
        except SignInError as error:
            if authorization is not None:
                await users.refused("a client of Flight SQL", str(error))
            raise flight.FlightUnauthenticatedError("a user of the cluster and its password are asked for") from None
        if not users.may(principal, Operation.DESCRIBE):
            raise flight.FlightUnauthorizedError(
                f"{principal} may not DESCRIBE the cluster, which its tables ask for"
            ) from None


class _Token(flight.ServerMiddleware):  # type: ignore[misc]
    """Gives the token with the answer."""

    def __init__(self, authorization: str) -> None:
        super().__init__()
        self._authorization = authorization

    def sending_headers(self) -> dict[str, str]:
        return {_HEADER: _BEARER + self._authorization.removeprefix(_BASIC)}


def _authorization(headers: Mapping[str, Any]) -> str | None:
    """The header as HTTP Basic has it; None for none, or one of another kind."""
    found = next((values for name, values in headers.items() if name.lower() == _HEADER and values), None)
    if found is None or not isinstance(found[0], str):
        return None
    for scheme in (_BASIC, _BEARER):
        if found[0].startswith(scheme):
            return _BASIC + found[0].removeprefix(scheme)
    return None
