"""
The messages of the control plane; the only module that knows kio.

kio describes every version of every message; a description is imported when its version is first used, because all of
them would take a second and a hundred megabytes. Reading and writing is in `messages`.
"""

import struct
import sys
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from log_broker.errors import ErrorCode
from log_broker.wire.apis import APIS, ApiKey
from log_broker.wire.messages import MessageReader, Values, codec_of, shape_of
from log_broker.wire.reading import MalformedRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

_INT32 = struct.Struct(">i")

# Apis that we do not serve but whose messages exist, so that an answer can carry an error in their layout.
_UNSERVED_NAMES = {
    17: "sasl_handshake",
    29: "describe_acls",
    30: "create_acls",
    31: "delete_acls",
    34: "alter_replica_log_dirs",
    36: "sasl_authenticate",
    38: "create_delegation_token",
    45: "alter_partition_reassignments",
    48: "describe_client_quotas",
    49: "alter_client_quotas",
    50: "describe_user_scram_credentials",
    51: "alter_user_scram_credentials",
    55: "describe_quorum",
    57: "update_features",
    68: "consumer_group_heartbeat",
    69: "consumer_group_describe",
    71: "get_telemetry_subscriptions",
    74: "list_config_resources",
    75: "describe_topic_partitions",
}


def read_request(api_key: int, version: int, body: memoryview) -> Any:
    """
    Read the request behind its header into kio's class for this version: its field names, times in ms.

    Raises MalformedRequestError when the bytes are not such a request.
    """
    description = description_of(api_key, version, "request")
    reader = MessageReader(body, flexible=description.__flexible__)
    try:
        return codec_of(description).read(reader)
    except (struct.error, IndexError, ValueError) as error:
        raise MalformedRequestError(f"{_name_of(api_key)} v{version}: {error}") from None


def write_response(api_key: int, version: int, correlation_id: int, values: Values) -> bytearray:
    """Write a response with its header from values by kio's field names; what the version lacks is left out."""
    description = description_of(api_key, version, "response")
    out = bytearray(_INT32.pack(correlation_id))
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


def write_refusal(api_key: int, version: int, correlation_id: int, error: ErrorCode, message: str) -> bytearray:
    """
    Write an answer that says only `error`, for an api or version that is not served.

    It has the layout that the client expects, where one is known: otherwise just the error behind the header.
    """
    try:
        description = description_of(api_key, version, "response")
    except (ModuleNotFoundError, KeyError):
        return bytearray(_INT32.pack(correlation_id) + struct.pack(">h", error))
    values = _blank(description)
    values["error_code"] = error
    if "error_message" in values:
        values["error_message"] = message
    return write_response(api_key, version, correlation_id, values)


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


def _blank(description: type[Any]) -> dict[str, Any]:
    """Return zeros, empty strings and empty arrays for the fields that have no default."""
    values: dict[str, Any] = {}
    for field in fields(description):
        name = field.name
        if "tag" in field.metadata:
            continue
        shape = shape_of(field.type)
        if shape.is_array:
            values[name] = ()
        elif shape.nullable:
            values[name] = None
        elif shape.description is not None:
            values[name] = _blank(shape.description)
        else:
            values[name] = {"string": "", "bytes": b"", "uuid": None, "bool": False}.get(
                field.metadata["kafka_type"], 0
            )
    return values
