"""
The image of the cluster as bytes: what a snapshot of the metadata log holds (KIP-630).

One JSON object with the fields of `ClusterImage`, so that epochs and the version go along, which records alone would
not bring back. A field that an older snapshot lacks takes its default.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from log_broker.config.broker import BrokerConfig, TopicConfig
from log_broker.core.cluster.access_image import AccessImage, image_of, records_of
from log_broker.core.cluster.image import BrokerImage, ClusterImage, PartitionImage, TopicImage
from log_broker.core.cluster.records import UnknownMetadataRecordError, decode_all, encode_all


def encode_image(image: ClusterImage) -> bytes:
    """Return a snapshot of the image; its defaults are of this broker's own settings and are left out."""
    topics = [
        {
            "name": topic.name,
            "topic_id": topic.topic_id,
            "partitions": [asdict(partition) for partition in topic.partitions],
            "overrides": dict(topic.overrides),
        }
        for topic in image.topics.values()
    ]
    content = {
        "version": image.version,
        "cluster_id": image.cluster_id,
        "topics": topics,
        "brokers": [_broker(broker) for broker in image.brokers.values()],
        "broker_overrides": [[node_id, dict(texts)] for node_id, texts in image.broker_overrides.items()],
        "next_producer_id": image.next_producer_id,
        "group_overrides": {group: dict(texts) for group, texts in image.group_overrides.items()},
        "levels_set": image.levels_set,
        "levels_version": image.levels_version,
    }
    if image.access.version:  # which a node of before users and ACLs could not read
        records = json.loads(encode_all(records_of(image.access)))
        content["access"] = {"version": image.access.version, "records": records}
    return json.dumps(content, separators=(",", ":")).encode()


def decode_image(data: bytes, defaults: BrokerConfig | None) -> ClusterImage:
    """Return the image of a snapshot; raises UnknownMetadataRecordError."""
    try:
        content = json.loads(data)
        topics = [_topic(fields, defaults) for fields in content["topics"]]
        brokers = [BrokerImage(**_tuples(fields)) for fields in content["brokers"]]
        return ClusterImage(
            defaults=defaults,
            version=content["version"],
            cluster_id=content["cluster_id"],
            topics={topic.name: topic for topic in topics},
            names={topic.topic_id: topic.name for topic in topics},
            brokers={broker.node_id: broker for broker in brokers},
            broker_overrides={node_id: texts for node_id, texts in content["broker_overrides"]},  # noqa: C416
            next_producer_id=content["next_producer_id"],
            group_overrides=content["group_overrides"],
            levels_set=content.get("levels_set", {}),
            levels_version=content.get("levels_version", 0),
            access=_access(content.get("access")),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UnknownMetadataRecordError(f"a snapshot of the metadata: {error!r}") from error


def _access(fields: Mapping[str, Any] | None) -> AccessImage:
    if fields is None:
        return AccessImage()
    return image_of(decode_all(json.dumps(fields["records"]).encode()), fields["version"])


def _topic(fields: Mapping[str, Any], defaults: BrokerConfig | None) -> TopicImage:
    return TopicImage(
        name=fields["name"],
        topic_id=fields["topic_id"],
        partitions=tuple(PartitionImage(**_tuples(partition)) for partition in fields["partitions"]),
        overrides=fields["overrides"],
        config=TopicConfig.from_overrides(fields["overrides"], defaults),
    )


def _broker(broker: BrokerImage) -> dict[str, Any]:
    content = asdict(broker)
    if broker.features is None:
        del content["features"]  # which a node of before the levels could not read
    if broker.listeners is None:
        del content["listeners"]  # nor one of before level 28
    return content


def _tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _as_tuple(value) for name, value in fields.items()}


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value
