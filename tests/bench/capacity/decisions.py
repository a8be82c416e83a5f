"""What the product's controller decides when a broker of a large cluster is lost: how long it takes, and who leads."""

import time
import tracemalloc
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from log_broker.core.cluster import elections
from log_broker.core.cluster.image import ClusterImage
from log_broker.core.cluster.records import PartitionChanged, encode_all
from log_broker.core.cluster.snapshot import decode_image, encode_image

MS = 1_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What follows from the loss of one broker; times are of one core."""

    changes: int
    heirs: int  # brokers that lead what it has led
    most: int  # partitions that one of them gets
    decide_ms: float
    replay_ms: float  # at the controller and at every broker
    record_bytes: int


def lose(image: ClusterImage, broker: int) -> Decision:
    """Have the product decide on the loss of a broker; the image stays."""
    began = time.process_time()
    records = elections.fence(image, broker)
    decided = time.process_time()
    draft = image.draft()
    for record in records:
        draft.replay(record)
    replayed = time.process_time()
    leaders = [each.leader for each in records if isinstance(each, PartitionChanged) and each.leader is not None]
    led = Counter(leaders)
    return Decision(
        changes=len(records),
        heirs=len(led),
        most=max(led.values(), default=0),
        decide_ms=MS * (decided - began),
        replay_ms=MS * (replayed - decided),
        record_bytes=len(encode_all(records)),
    )


def typical(found: Iterable[Decision]) -> Decision:
    """The median of each figure by itself."""
    every = list(found)
    return Decision(
        changes=int(median(each.changes for each in every)),
        heirs=int(median(each.heirs for each in every)),
        most=int(median(each.most for each in every)),
        decide_ms=median(each.decide_ms for each in every),
        replay_ms=median(each.replay_ms for each in every),
        record_bytes=int(median(each.record_bytes for each in every)),
    )


def held_mib(image: ClusterImage) -> float:
    """Return the MiB that every broker holds the image in, once it has read a snapshot of it."""
    snapshot = encode_image(image)
    tracemalloc.start()
    try:
        held = decode_image(snapshot, None)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held.version == image.version
    return size / 2**20
