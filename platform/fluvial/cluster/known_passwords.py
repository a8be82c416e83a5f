"""
Which users have a password that a stranger would try first: found as a stranger would find it, by signing in.

What a broker keeps of a password cannot be read by anybody, so there is no other way. A wrong password is held back by
the broker and told of in its log.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from fluvial.cluster.sign_in import RejectedError
from fluvial.cluster.wire import ClusterLink, RefusedError
from fluvial.kafka import KafkaCluster
from log_broker.wire.apis import ApiKey

USERS_MAX = 100
AT_ONCE = 4
EVERYBODYS = ("password", "secret", "admin", "kafka", "changeit", "changeme", "123456")
"""What documentation and Java's keystores have; with the user's own name these are eleven for each."""


def candidates(name: str) -> tuple[str, ...]:
    """Return the passwords to try, `alice-secret` of Kafka's own documentation among them."""
    return tuple(dict.fromkeys((name, f"{name}-secret", f"{name}123", name[::-1], *EVERYBODYS)))


def users_of(cluster: ClusterLink) -> list[str]:
    """Return the users whom the cluster knows, without those in the settings of brokers; raises FluvialError."""
    answer = cluster.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": None})
    if answer.error_code:
        raise RefusedError("list the users", answer.error_code, answer.error_message)
    return sorted(each.user for each in answer.results if not each.error_code)


def with_known_passwords(cluster: KafkaCluster, names: Iterable[str]) -> list[str]:
    """
    Return those of the first USERS_MAX users whose password is among their candidates.

    `cluster` is one that `has_passwords`. Raises FluvialError where it does not answer.
    """
    asked = sorted(set(names))[:USERS_MAX]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        found: Sequence[bool] = list(threads.map(partial(_has_known_password, cluster), asked))
    return [name for name, is_known in zip(asked, found, strict=True) if is_known]


def _has_known_password(cluster: KafkaCluster, name: str) -> bool:
    return any(_signs_in(cluster.as_user(name, each)) for each in candidates(name))


def _signs_in(cluster: KafkaCluster) -> bool:
    try:
        with ClusterLink(cluster) as link:
            link.ask(ApiKey.DESCRIBE_CLUSTER, {"include_cluster_authorized_operations": False})
    except RejectedError:
        return False
    return True
