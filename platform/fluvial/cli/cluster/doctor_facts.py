"""What `fluvial cluster doctor` judges beyond settings: releases, disks, clocks, and how far tables have read."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from fluvial.cli import terminal
from fluvial.config import Settings
from fluvial.delta.errors import TableError
from fluvial.errors import FluvialError

if TYPE_CHECKING:
    from fluvial.cluster.doctor import DiskFacts, TableFacts, TopicFacts
    from fluvial.cluster.picture import Picture
    from fluvial.cluster.wire import ClusterLink

REGISTRY_SECONDS_MAX = 5.0


def disk_facts(cluster: "ClusterLink", picture: "Picture") -> "dict[int, DiskFacts]":
    """Ask each broker for its disks; one that does not answer has none."""
    from fluvial.cluster.doctor import DiskFacts
    from fluvial.cluster.picture import log_dirs_of

    found = {broker.node_id: log_dirs_of(cluster, broker) for broker in picture.brokers.values()}
    return {
        node: DiskFacts(total_bytes=dirs.total_bytes, usable_bytes=dirs.usable_bytes, failed=dirs.failed)
        for node, dirs in found.items()
        if dirs is not None
    }


def version_facts(cluster: "ClusterLink") -> tuple[dict[int, int], int]:
    """Return the highest metadata.version that each broker supports, and the cluster's."""
    from fluvial.cluster.features import features_of
    from log_broker.core.cluster.features import METADATA_VERSION

    feature = features_of(cluster).by_name.get(METADATA_VERSION)
    return (
        ({}, 0) if feature is None else ({node: most for node, (_, most) in feature.supported.items()}, feature.level)
    )


def clock_facts(settings: Settings) -> dict[str, float]:
    """
    Return by how many seconds the clock of each registry's machine is ahead, as the Date of its answers says.

    A node of fluvial serves a registry, so these are the brokers' clocks; a Kafka broker tells nobody its time. The
    Date is of whole seconds.
    """
    import httpx

    from fluvial.kafka.tls import tls_context

    is_encrypted = "https:" in settings.registry_url.lower()
    verify = tls_context(settings.registry_properties) if is_encrypted else False
    found = {}
    for address in settings.registry_url.split(","):
        try:
            answer = httpx.get(f"{address.strip()}/", timeout=REGISTRY_SECONDS_MAX, verify=verify)
            said = parsedate_to_datetime(answer.headers["Date"])
        except (httpx.HTTPError, httpx.InvalidURL, KeyError, ValueError):
            continue
        found[address.strip()] = (said - datetime.now(UTC)).total_seconds()
    return found


def table_facts(settings: Settings, topics: "Mapping[str, TopicFacts]") -> "tuple[TableFacts, ...]":
    """Return what the log has deleted, or soon will, of what tables on this machine have not read."""
    from fluvial.cli.table.places import names_of

    facts = []
    try:
        for name in names_of(settings):
            try:
                facts.append(_table_facts(settings, name, topics))
            except TableError as error:
                terminal.say(f"{name} is not judged: {error}")
    except FluvialError as error:
        terminal.say(f"tables are not judged: {error}")
    return tuple(filter(None, facts))


def _table_facts(settings: Settings, name: str, topics: "Mapping[str, TopicFacts]") -> "TableFacts | None":
    """None for a table whose topic is not there, or that is made from other tables."""
    from fluvial.cli.table.places import folder_of
    from fluvial.cli.topic.partitions import bounds_of, time_offsets_of
    from fluvial.cluster.doctor import TableFacts
    from fluvial.delta.log import TableLog
    from fluvial.delta.stamp import Stamp
    from fluvial.kafka.admin import admin_of

    commits = TableLog(None, folder_of(settings, name)).newest_first()
    stamp = next((stamp for commit in commits if (stamp := Stamp.of(commit)) is not None), None)
    if stamp is None or (topic := topics.get(stamp.topic)) is None:
        return None
    admin = admin_of(settings.cluster)
    read = {(topic.name, number): end for number, (_, end) in stamp.offsets.items() if number < topic.partitions}
    bounds = bounds_of(admin, read)
    lost = sum(max(0, start - read[place]) for place, (start, _) in bounds.items())
    old = 0
    retention_ms = int(topic.settings.get("retention.ms", "-1"))
    if retention_ms >= 0 and "delete" in topic.settings.get("cleanup.policy", "delete"):
        young = time_offsets_of(admin, read, datetime.now(UTC) - timedelta(milliseconds=retention_ms / 2))
        for place, (start, end) in bounds.items():
            until = end if young[place] < 0 else young[place]
            old += max(0, until - max(start, read[place]))
    return TableFacts(name=name, topic=topic.name, lost=lost, old=old)
