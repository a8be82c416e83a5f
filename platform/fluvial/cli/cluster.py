"""The Kafka cluster that a command works on, through `confluent-kafka` and with bounded waits."""

import logging
import shlex
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluvial.config import DATA_DIR, Settings
from fluvial.errors import FluvialError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata

TIMEOUT_SECONDS = 10.0
"""How long a cluster may take to answer before it counts as unreachable."""

_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())
_log.propagate = False


class ClusterError(FluvialError):
    """A Kafka cluster cannot be reached, or refused a request."""


class UnknownTopicError(ClusterError):
    """The cluster has no topic of this name."""

    def __init__(self, topic: str, known: Iterable[str]) -> None:
        near = get_close_matches(topic, list(known), n=3)
        mend = f"did you mean {' or '.join(near)}?" if near else f"make it with `fluvial topic create {topic}`"
        super().__init__(f"no topic {topic!r} in the cluster; {mend}")
        self.topic = topic


def client_conf(settings: Settings, **more: Any) -> dict[str, Any]:
    """Return what every client is made with; its own log lines stay off the terminal."""
    return {"bootstrap.servers": settings.bootstrap_servers, "logger": _log, **more}


def admin_of(settings: Settings) -> "AdminClient":
    """Return an admin client; it connects on first use."""
    from confluent_kafka.admin import AdminClient

    return AdminClient(client_conf(settings))


def describe_cluster(settings: Settings, admin: "AdminClient") -> "ClusterMetadata":
    """Return the brokers and topics; raises ClusterError when the cluster does not answer in time."""
    from confluent_kafka import KafkaException

    # The client would go on trying for the whole time where nothing listens at all.
    if not any(_accepts(server.strip()) for server in settings.bootstrap_servers.split(",")):
        raise ClusterError(_unreachable(settings, "accepts a connection"))
    try:
        return admin.list_topics(timeout=TIMEOUT_SECONDS)
    except KafkaException as error:
        raise ClusterError(_unreachable(settings, f"answers within {TIMEOUT_SECONDS:.0f} s")) from error


def _unreachable(settings: Settings, what: str) -> str:
    elsewhere = settings.local and settings.data_dir != Path(DATA_DIR)
    start = f"fluvial up --data-dir {shlex.quote(str(settings.data_dir))}" if elsewhere else "fluvial up"
    return (
        f"no Kafka broker at {settings.bootstrap_servers} {what}; start the local platform with `{start}`, "
        "or name another cluster with --bootstrap-server"
    )


def _accepts(server: str) -> bool:
    host, _, port = server.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=TIMEOUT_SECONDS):
            return True
    except OSError:
        return False


def require_topic(cluster: "ClusterMetadata", topic: str) -> Any:
    """Return a topic's metadata; asking for one topic alone could create it, so all are listed."""
    if topic not in cluster.topics:
        raise UnknownTopicError(topic, cluster.topics)
    return cluster.topics[topic]


@contextmanager
def told(doing: str) -> Iterator[None]:
    """Turn a client error into one clear line that says what was being done."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        raise ClusterError(f"cannot {doing}: {reason(error)}") from error


def reason(error: Exception) -> str:
    """Return what the broker, or else the client, said."""
    cause = error.args[0] if error.args else error
    text: str = cause.str() if hasattr(cause, "str") else str(cause)
    return text.strip().rstrip(".")
