"""The two clusters side by side, warmed up, and what a load on three nodes has besides one on a single broker."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.bench.broker.arena import Arena, Scale, Side
from tests.bench.broker.measuring import Sample, drive, stored, topic
from tests.bench.cluster.servers import Cluster, KafkaCluster, OurCluster

SAFE = (("min.insync.replicas", "2"),)
OURS = Side("ours", "fsync-quorum", SAFE)
KAFKA_DEFAULT = Side("Kafka", "default", SAFE)
KAFKA_FLUSH = Side("Kafka", "flush.messages=1", (*SAFE, ("flush.messages", "1")))
SIDES = (OURS, KAFKA_DEFAULT, KAFKA_FLUSH)


class ClusterArena(Arena):
    """Two running clusters, kept for the loads that share them."""

    def __init__(self, base: Path | None, scale: Scale, clusters: Mapping[str, type[Cluster]] | None = None) -> None:
        super().__init__(base, scale, clusters or {"ours": OurCluster, "Kafka": KafkaCluster})

    def produce(self, broker: Any, side: Side, driver: str, load: Mapping[str, Any], partitions: int = 1) -> Sample:
        """Run a producing driver into a new topic of three replicas; raw requests go straight to the leaders."""
        with topic(broker, self.topic_name(), partitions, side.config) as name:
            broker.await_in_sync(name)
            leaders = [member.address for member in broker.leaders(name)]
            more = {"leaders": leaders} if driver == "raw_requests" else {}
            sample = drive(broker, driver, {"topic": name, "partitions": partitions, **load, **more})
            found = stored(broker, name, range(partitions))
            if found != sample.acknowledged:
                raise RuntimeError(f"{broker.name} acknowledged {sample.acknowledged} records and holds {found}")
        return sample

    @property
    def warm_up_sides(self) -> tuple[Side, ...]:
        return tuple(side for side in (OURS, KAFKA_DEFAULT) if side.broker in self.kinds)
