"""
What must hold of every image of the cluster, and of every step from one to the next.

Each check yields sentences that say what is wrong; nothing yielded is what is wanted. Tests and the simulator ask after
each batch of records.
"""

from collections.abc import Iterator

from log_broker.core.cluster.features import METADATA_VERSION, misfit, ranges_of
from log_broker.core.cluster.image import NO_LEADER, ClusterImage, PartitionImage, TopicImage


def check_image(image: ClusterImage) -> Iterator[str]:
    """Yield what is wrong with an image, between two batches of records."""
    for node_id, broker in image.brokers.items():
        wrong = misfit(f"broker {node_id}", ranges_of(broker.features), image.levels) if broker.features else None
        if wrong is not None and not broker.has_ended:
            yield wrong
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            for wrong in _check_partition(image, topic, index, partition):
                yield f"{topic.name}-{index} {wrong}: {partition}"


def check_step(before: ClusterImage, after: ClusterImage) -> Iterator[str]:
    """Yield what no batch of records may do."""
    if after.levels[METADATA_VERSION] < before.levels[METADATA_VERSION]:
        yield f"{METADATA_VERSION} was lowered to {after.levels[METADATA_VERSION]}"
    for node_id, broker in after.brokers.items():
        known = before.brokers.get(node_id)
        if known is not None and broker.epoch < known.epoch:
            yield f"the epoch of broker {node_id} went back from {known.epoch} to {broker.epoch}"
        if known is not None and known.has_ended and not broker.is_fenced and broker.epoch == known.epoch:
            yield f"broker {node_id} came back without having registered again"
    for name, topic in after.topics.items():
        old = before.topics.get(name)
        if old is None or old.topic_id != topic.topic_id:
            continue
        if len(topic.partitions) < len(old.partitions):
            yield f"{name} has fewer partitions than before"
        for index, (then, now) in enumerate(zip(old.partitions, topic.partitions, strict=False)):
            for wrong in _check_change(then, now):
                yield f"{name}-{index} {wrong}: {then} became {now}"


def _check_partition(image: ClusterImage, topic: TopicImage, index: int, partition: PartitionImage) -> Iterator[str]:
    replicas, isr, elr = set(partition.replicas), set(partition.isr), set(partition.elr)
    if not replicas or len(replicas) < len(partition.replicas):
        yield "has no replicas, or one twice"
    if not replicas <= image.brokers.keys():
        yield "has replicas that never registered"
    if len(isr) < len(partition.isr) or not isr <= replicas:
        yield "has an ISR that names one twice or is not within the replicas"
    if not elr <= replicas or elr & isr:
        yield "has an ELR that is not within the replicas or overlaps the ISR"
    if elr and len(isr) >= topic.min_isr(index):
        yield "has an ELR although the ISR has its minimum"
    if partition.leader == NO_LEADER and isr:
        yield "has an ISR and no leader"
    if partition.leader != NO_LEADER and partition.leader not in isr:
        yield "has a leader outside the ISR"
    if not all(map(image.may_lead, isr)):
        yield "has one in the ISR that is fenced or leaving"
    if not {*partition.adding, *partition.removing} <= replicas:
        yield "is moved and lacks one that comes or goes"
    if partition.is_moving and set(partition.replicas) - set(partition.removing) <= isr:
        yield "is still being moved although all that stay are in sync"


def _check_change(then: PartitionImage, now: PartitionImage) -> Iterator[str]:
    if now.leader_epoch < then.leader_epoch or now.partition_epoch < then.partition_epoch:
        yield "has an epoch that went back"
    if now.partition_epoch == then.partition_epoch and now != then:
        yield "changed within one partition epoch"
    if now.leader != then.leader and now.leader_epoch == then.leader_epoch:
        yield "has another leader in the same epoch"
    if now.recovering or now.leader in {NO_LEADER, then.leader}:
        return
    # The last one that a move waits for enters the ISR and may lead, both by the same change.
    has_moved = then.is_moving and not now.is_moving and then.leader != NO_LEADER
    if now.leader not in {*then.isr, *then.elr} and not has_moved:
        yield "is led by one that was neither in sync nor eligible"
