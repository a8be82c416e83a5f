"""
The topics that contracts describe: made where they are missing, and given the settings that `owner.toml` says.

A topic of a contract takes only records that decode under it, unless the contract says otherwise.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from fluvial.kafka.admin import TIMEOUT_SECONDS, cluster_errors
from fluvial.registry.contracts import Contract, DescribedTopic

if TYPE_CHECKING:
    from fluvial.kafka.recording_admin import RecordingAdmin


def described_topics(contracts: Iterable[Contract]) -> dict[str, DescribedTopic]:
    """Return what contracts say of their topics, by name in order; topics that are only named are not among them."""
    found = {each.topic: each.described for each in contracts if each.described is not None}
    return dict(sorted(found.items()))


def ensure_topics(
    admin: "RecordingAdmin", topics: Mapping[str, DescribedTopic], there: Mapping[str, int]
) -> Iterator[str]:
    """
    Make topics as they are described and change settings that are others; yield a sentence for each change.

    `there` are the topics that there are, with their partitions: those are never changed, for keys would move. Raises
    ClusterError.
    """
    for name, topic in topics.items():
        if name not in there:
            with cluster_errors(f"create topic {name!r}"):
                _create(admin, name, topic)
            yield f"topic {name} created"
            continue
        if topic.partitions not in {None, there[name]}:
            yield (
                f"topic {name} keeps its {there[name]} partitions: with the {topic.partitions} of its contract a key's "
                f"records would be in two of them (`fluvial topic alter {name} --partitions` grows it all the same)"
            )
        with cluster_errors(f"change topic {name!r}"):
            changed = _change(admin, name, topic)
        if changed:
            yield f"topic {name} set: {', '.join(changed)}"


def _create(admin: "RecordingAdmin", name: str, topic: DescribedTopic) -> None:
    from confluent_kafka.admin import NewTopic

    new = NewTopic(
        name,
        num_partitions=topic.partitions or -1,
        replication_factor=topic.replication_factor or -1,
        config=dict(topic.settings),
    )
    for future in admin.create_topics(
        [new], operation_timeout=TIMEOUT_SECONDS, request_timeout=TIMEOUT_SECONDS
    ).values():
        future.result()


def _change(admin: "RecordingAdmin", name: str, topic: DescribedTopic) -> list[str]:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    asked = ConfigResource(ResourceType.TOPIC, name)
    known = admin.describe_configs([asked], request_timeout=TIMEOUT_SECONDS)[asked].result()
    wanted = {key: value for key, value in topic.settings.items() if key not in known or known[key].value != value}
    if wanted:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in wanted.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        admin.incremental_alter_configs([resource], request_timeout=TIMEOUT_SECONDS)[resource].result()
    return [f"{key}={value}" for key, value in wanted.items()]
