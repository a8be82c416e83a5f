"""What `fluvial cluster doctor` knows of topics' loads: records of the last hour, and the groups that read them."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from fluvial.cli import terminal
from fluvial.config import Settings
from fluvial.kafka.admin import TIMEOUT_SECONDS, ClusterError, cluster_errors

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from fluvial.cluster.doctor import TopicFacts, TopicLoad
    from fluvial.cluster.picture import Picture
    from fluvial.cluster.wire import ClusterLink

WINDOW = timedelta(hours=1)
_GROUPS_AT_ONCE = 100


def load_facts(
    settings: Settings, cluster: "ClusterLink", picture: "Picture", topics: "Iterable[TopicFacts]"
) -> "dict[str, TopicLoad]":
    """Return the load of each topic; none where the cluster does not tell."""
    from fluvial.cluster.doctor import TopicLoad
    from fluvial.kafka.admin import admin_of

    names = {topic.name for topic in topics}
    admin = admin_of(settings.cluster)
    try:
        rates = _rates(admin, cluster, picture, names)
        readers = _readers(admin)
    except ClusterError as error:
        terminal.say(f"the loads of topics are not judged: {error}")
        return {}
    found = {}
    for name in names:
        group, members = readers.get(name, ("", 0))
        found[name] = TopicLoad(bytes_per_second=rates.get(name, 0.0), consumers=members, group=group)
    return found


def _rates(admin: "AdminClient", cluster: "ClusterLink", picture: "Picture", names: set[str]) -> dict[str, float]:
    """Bytes a second over `WINDOW`: its records, as large as those are that the leaders hold on the average."""
    from fluvial.cli.topic.partitions import bounds_of, time_offsets_of
    from fluvial.cluster.picture import TopicPartition, log_dirs_of

    places = [(tp.topic, tp.partition) for tp in picture.partitions if tp.topic in names]
    if not places:
        return {}
    bounds = bounds_of(admin, places)
    young = time_offsets_of(admin, places, datetime.now(UTC) - WINDOW)
    sizes = {node: dirs.sizes for node, broker in picture.brokers.items() if (dirs := log_dirs_of(cluster, broker))}
    rates: dict[str, float] = {}
    for place, (start, end) in bounds.items():
        if young[place] < 0 or end <= start:
            continue
        tp = TopicPartition(*place)
        size = sizes.get(picture.partitions[tp].leader, {}).get(tp, 0)
        recent = size * (end - max(start, young[place])) / (end - start)
        rates[tp.topic] = rates.get(tp.topic, 0.0) + recent / WINDOW.total_seconds()
    return rates


def _readers(admin: "AdminClient") -> Mapping[str, tuple[str, int]]:
    """By topic the group with the most members of those that it is assigned to, and how many members that has."""
    with cluster_errors("list the consumer groups"):
        listed = admin.list_consumer_groups(request_timeout=TIMEOUT_SECONDS).result()
    groups = sorted(each.group_id for each in listed.valid)
    readers: dict[str, tuple[str, int]] = {}
    for first in range(0, len(groups), _GROUPS_AT_ONCE):
        asked = admin.describe_consumer_groups(groups[first : first + _GROUPS_AT_ONCE], request_timeout=TIMEOUT_SECONDS)
        for group, future in asked.items():
            with cluster_errors(f"describe group {group}"):
                members = future.result().members
            for topic in {place.topic for each in members for place in each.assignment.topic_partitions}:
                if len(members) > readers.get(topic, ("", 0))[1]:
                    readers[topic] = (group, len(members))
    return readers
