"""The Kafka cluster that is worked on, through `confluent-kafka` and with bounded waits."""

import shlex
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluvial.config import DATA_DIR, Settings
from fluvial.errors import FluvialError
from fluvial.kafka.cluster import KafkaCluster

if TYPE_CHECKING:
    from confluent_kafka.admin import ClusterMetadata

    from fluvial.kafka.recording_admin import RecordingAdmin

TIMEOUT_SECONDS = 10.0
"""How long a cluster may take to answer before it counts as unreachable."""
DOWN_SECONDS = 5.0
"""A broker that restarts is back well within this; one that is down is told of before the user gives up."""
_TRY_SECONDS = 1.0


class ClusterError(FluvialError):
    """A Kafka cluster cannot be reached, or refused a request."""


class UnreachableError(ClusterError):
    """
    No broker of a cluster answers; `why` says what is wrong with how it was talked to, where that is known.
    """

    def __init__(self, cluster: KafkaCluster, why: str | None) -> None:
        super().__init__(
            f"the Kafka broker at {cluster} {why}" if why is not None else f"no Kafka broker answers at {cluster}"
        )
        self.why = why


class UnknownTopicError(ClusterError):
    """The cluster has no topic of this name."""

    def __init__(self, topic: str, known: Iterable[str]) -> None:
        near = get_close_matches(topic, list(known), n=3)
        repair = f"did you mean {' or '.join(near)}?" if near else f"make it with `fluvial topic create {topic}`"
        super().__init__(f"no topic {topic!r} in the cluster; {repair}")
        self.topic = topic


def admin_of(cluster: KafkaCluster, **more: Any) -> "RecordingAdmin":
    """Return an admin client, which connects on first use; raises ClusterError when its properties make none."""
    from confluent_kafka import KafkaException

    from fluvial.kafka.recording_admin import RecordingAdmin

    try:
        return RecordingAdmin(cluster.client(**more))
    except KafkaException as error:
        raise ClusterError(f"no client of {cluster} can be created: {reason(error)}; check its properties") from error


def await_broker(
    admin: "RecordingAdmin",
    cluster: KafkaCluster,
    *,
    down_seconds: float = DOWN_SECONDS,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> None:
    """
    Return when a broker answers; raises UnreachableError.

    That is at once when a broker will not have us, after `down_seconds` when every connection is refused or hung up,
    and after `timeout_seconds` when none answers.
    """
    from confluent_kafka import KafkaError, KafkaException

    from fluvial.kafka.recording_admin import WANTS_TLS, is_final, meaning

    began = time.monotonic()
    while True:
        try:
            admin.list_topics(topic="", timeout=_TRY_SECONDS)
            return
        except KafkaException as error:
            heard = admin.heard()
            waited = time.monotonic() - began
            hung_up = heard is not None or error.args[0].code() == KafkaError._TRANSPORT
            if (heard is not None and is_final(heard)) or waited >= (down_seconds if hung_up else timeout_seconds):
                why = None if heard is None else meaning(heard)
                if heard is None and cluster.protocol == "PLAINTEXT" and admin.is_hung_up_on():
                    why = WANTS_TLS
                raise UnreachableError(cluster, why) from error


def describe_cluster(settings: Settings, admin: "RecordingAdmin") -> "ClusterMetadata":
    """Return the brokers and topics; raises ClusterError when the cluster does not answer in time."""
    from confluent_kafka import KafkaException

    # The client would go on trying for the whole time where nothing listens at all.
    if not any(_accepts(server.strip()) for server in settings.bootstrap_servers.split(",")):
        raise ClusterError(_unreachable(settings, "accepts a connection"))
    slow = f"answers within {TIMEOUT_SECONDS:.0f} s"
    try:
        await_broker(admin, settings.cluster)
        return admin.list_topics(timeout=TIMEOUT_SECONDS)
    except UnreachableError as error:
        if error.why is not None:
            raise
        raise ClusterError(_unreachable(settings, slow)) from error
    except KafkaException as error:
        raise ClusterError(_unreachable(settings, slow)) from error


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
def cluster_errors(doing: str) -> Iterator[None]:
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
