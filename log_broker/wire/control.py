"""
The messages of the control plane; the only module that knows kio.

kio describes every version of every message; a description is imported when its version is first used, because all of
them would take a second and a hundred megabytes. Reading and writing is in `messages`, but for what is asked so often
that it is read and written by hand, under the same names.
"""

import struct
import sys
from collections.abc import Callable, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from log_broker.errors import ErrorCode
from log_broker.wire import offset_commit
from log_broker.wire.apis import APIS, ApiKey
from log_broker.wire.messages import MessageReader, Values, codec_of
from log_broker.wire.reading import ELEMENTS_MAX, MalformedRequestError
from log_broker.wire.refusals import refusal
from log_broker.wire.refusals import refused_entries as entries_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_INT32 = struct.Struct(">i")


class _ByHand(NamedTuple):
    """Reads a request, of so many elements at the most, and writes a response, each behind its header."""

    read: Callable[[memoryview, int, int], tuple[Any, int]]
    write: Callable[[bytearray, int, Values], None]


_BY_HAND: Mapping[int, _ByHand] = {ApiKey.OFFSET_COMMIT: _ByHand(offset_commit.read, offset_commit.write)}

# Apis that we do not serve but whose messages exist, so that an answer can carry an error in their layout.
_UNSERVED_NAMES = {
    38: "create_delegation_token",
    39: "renew_delegation_token",
    40: "expire_delegation_token",
    41: "describe_delegation_token",
    71: "get_telemetry_subscriptions",
    72: "push_telemetry",
    76: "share_group_heartbeat",
    77: "share_group_describe",
    78: "share_fetch",
    79: "share_acknowledge",
    88: "streams_group_heartbeat",
    89: "streams_group_describe",
    90: "describe_share_group_offsets",
    91: "alter_share_group_offsets",
    92: "delete_share_group_offsets",
}


def read_request(api_key: int, version: int, body: memoryview) -> Any:
    """
    Read the request behind its header into kio's class for this version: its field names, times in ms.

    Raises MalformedRequestError when the bytes are not such a request.
    """
    return read_counted_request(api_key, version, body)[0]


def read_counted_request(api_key: int, version: int, body: memoryview) -> tuple[Any, int]:
    """Read a request and count the elements of its arrays; see `read_request`."""
    elements_max = APIS[api_key].elements_max if api_key in APIS else ELEMENTS_MAX
    try:
        by_hand = _by_hand(api_key, version)
        if by_hand is not None:
            return by_hand.read(body, version, elements_max)
        description = description_of(api_key, version, "request")
        reader = MessageReader(body, flexible=description.__flexible__, elements_max=elements_max)
        return codec_of(description).read(reader), reader.elements
    except (struct.error, IndexError, ValueError) as error:
        raise MalformedRequestError(f"{_name_of(api_key)} v{version}: {error}") from None


def write_response(api_key: int, version: int, correlation_id: int, values: Values) -> bytearray:
    """Write a response with its header from values by kio's field names; what the version lacks is left out."""
    out = bytearray(_INT32.pack(correlation_id))
    by_hand = _by_hand(api_key, version)
    if by_hand is not None:
        if version >= APIS[api_key].flexible_from:
            out.append(0)
        by_hand.write(out, version, values)
        return out
    description = description_of(api_key, version, "response")
    # An ApiVersions response has the old header in every version: its reader does not know ours yet.
    if description.__flexible__ and api_key != ApiKey.API_VERSIONS:
        out.append(0)
    codec_of(description).write(out, values)
    return out


def write_request(api_key: int, version: int, correlation_id: int, client_id: str, values: Values) -> bytearray:
    """Write a request with its header, as one broker sends it to another."""
    description = description_of(api_key, version, "request")
    name = client_id.encode()
    out = bytearray(struct.pack(">hhih", api_key, version, correlation_id, len(name)))
    out += name
    if description.__flexible__:
        out.append(0)
    codec_of(description).write(out, values)
    return out


def read_response(api_key: int, version: int, body: memoryview) -> Any:
    """Read the response behind its correlation id; raises MalformedRequestError."""
    description = description_of(api_key, version, "response")
    reader = MessageReader(body, flexible=description.__flexible__)
    try:
        if description.__flexible__ and api_key != ApiKey.API_VERSIONS:
            reader.tagged_fields()
        return codec_of(description).read(reader)
    except (struct.error, IndexError, ValueError) as error:
        raise MalformedRequestError(f"the answer to {_name_of(api_key)} v{version}: {error}") from None


def write_refusal(
    api_key: int, version: int, correlation_id: int, error: ErrorCode, message: str, *, body: memoryview | None = None
) -> bytearray:
    """
    Write an answer that says only `error`, for a request that went wrong or an api or version that is not served.

    It has the layout that the client expects, where one is known: otherwise just the error behind the header. `body` is
    the request's, from which the entries are taken where each has an error of its own.
    """
    try:
        description = description_of(api_key, version, "response")
    except (ModuleNotFoundError, KeyError):
        return bytearray(_INT32.pack(correlation_id) + struct.pack(">h", error))
    request = None
    if body is not None:
        with suppress(MalformedRequestError):
            request = read_request(api_key, version, body)
    return write_response(api_key, version, correlation_id, refusal(description, request, error, message))


def refused_entries(api_key: int, version: int, request: Any, error: ErrorCode, message: str) -> Values:
    """Return the arrays of an answer in which every entry of a request, read as `read_request` does, has an error."""
    return entries_of(description_of(api_key, version, "response"), request, error, message)


@cache
def description_of(api_key: int, version: int, direction: str) -> type[Any]:
    """
    Return kio's class of a message; `direction` is "request" or "response".

    Raises KeyError for an api without a name here and ModuleNotFoundError for a version that kio does not have.
    """
    name = _name_of(api_key)
    with _without_hypothesis():
        module = import_module(f"kio.schema.{name}.v{version}.{direction}")
    class_name = "".join(word.capitalize() for word in name.split("_")) + direction.capitalize()
    description: type[Any] = getattr(module, class_name)
    return description


def _by_hand(api_key: int, version: int) -> _ByHand | None:
    found = _BY_HAND.get(api_key)
    return found if found is not None and APIS[api_key].supports(version) else None


def _name_of(api_key: int) -> str:
    return APIS[api_key].key.name.lower() if api_key in APIS else _UNSERVED_NAMES[api_key]


@contextmanager
def _without_hypothesis() -> "Iterator[None]":
    """
    Keep kio from importing hypothesis, which it does wherever that is installed, to register strategies.

    That costs a broker in a development environment 130 ms of its start and 12 MB.
    """
    if "hypothesis" in sys.modules or "kio.static.primitive" in sys.modules:
        yield
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["hypothesis"]
