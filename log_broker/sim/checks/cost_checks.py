"""
What a broker's work may cost, whatever is asked of it: a turn of its event loop, and the numbers that last.
"""

from collections.abc import Iterator

from log_broker.core.cluster.image import ClusterImage
from log_broker.core.raft.replica import epoch_bound
from log_broker.core.transactions.transaction import EPOCH_MAX as PRODUCER_EPOCH_MAX
from log_broker.server.node import Node
from log_broker.sim.kernel.kernel import InvariantError

LONG_TURN = "a turn of an event loop takes at most 50 ms"
TURN_SECONDS_MAX = 0.050  # of CPU time
TRANSACTION_MS_MAX = 900_000
EPOCHS_MAX = 100_000  # far more than a run begins of anything


def check_turn(name: str, cpu_seconds: float) -> None:
    """Raise InvariantError for a turn of a serving broker's loop that keeps all its clients waiting."""
    if cpu_seconds > TURN_SECONDS_MAX:
        raise InvariantError(LONG_TURN, f"{name}: one took {cpu_seconds * 1e3:.0f} ms of CPU")


def check_numbers(name: str, node: Node) -> None:
    """Raise InvariantError for a number that is kept and cannot be."""
    for wrong in out_of_bounds(node):
        raise InvariantError("numbers that last are within their bounds", f"{name}: {wrong}")


def out_of_bounds(node: Node) -> list[str]:
    """Name what is kept and cannot be, of the quorum, the image, the logs, the groups and the transactions."""
    bad = [*_of_image(node), *_of_logs(node), *_of_coordinators(node)]
    if not 0 <= node.quorum.epoch < EPOCHS_MAX <= epoch_bound(node.clock_ms() // 1000):
        bad.append(f"the quorum is in epoch {node.quorum.epoch}")
    return bad


def _of_image(node: Node) -> Iterator[str]:
    image = node.cluster
    if not 0 <= image.next_producer_id < 10**9:
        yield f"producer ids are reserved up to {image.next_producer_id}"
    for broker in image.brokers.values():
        if not (0 <= broker.node_id < 2**31 and 0 < broker.port < 2**16 and 0 < len(broker.host) <= 255):
            yield f"broker {broker.node_id} at {broker.host[:50]}:{broker.port}"
        if len(broker.rack or "") > 255:
            yield f"a rack of {len(broker.rack or '')} characters"
    yield from _of_partitions(image)
    for voter in node.quorum.voters:
        if voter.key.node_id < 0 or not 0 < voter.port < 2**16 or len(voter.host) > 255:
            yield f"the voter {voter}"
    for overrides in (*image.broker_overrides.values(), *image.group_overrides.values()):
        for name, text in overrides.items():
            if len(text) > 32_767:
                yield f"{name} is a text of {len(text)} characters"


def _of_partitions(image: ClusterImage) -> Iterator[str]:
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            epochs = (partition.leader_epoch, partition.partition_epoch)
            if not all(0 <= epoch < EPOCHS_MAX for epoch in epochs):
                yield f"{topic.name}-{index} has the epochs {epochs}"
            if not set(partition.replicas) <= set(image.brokers):
                yield f"{topic.name}-{index} has the replicas {partition.replicas}"


def _of_logs(node: Node) -> Iterator[str]:
    for topic in node.cluster.topics.values():
        for index in range(len(topic.partitions)):
            runtime = node.logs.get(topic.name, index)
            if runtime is None:
                continue
            state = runtime.replica.core.state
            if not 0 <= state.log_start_offset <= state.high_watermark <= state.written_end < 10**9:
                yield f"{topic.name}-{index}: {state.log_start_offset} … {state.high_watermark} … {state.written_end}"
            for producer_id, entry in state.producers.all().items():
                numbers = (entry.epoch, entry.coordinator_epoch)
                if producer_id < 0 or not 0 <= entry.epoch <= PRODUCER_EPOCH_MAX:
                    yield f"{topic.name}-{index}: producer {producer_id} in epoch {entry.epoch}"
                if not -1 <= entry.coordinator_epoch < EPOCHS_MAX:
                    yield f"{topic.name}-{index}: producer {producer_id} with epochs {numbers}"


def _of_coordinators(node: Node) -> Iterator[str]:
    for group in node.groups.all():
        for place, committed in group.offsets._offsets.items():
            if committed.offset < -1 or committed.leader_epoch < -1 or len(committed.metadata) > 4096:
                yield f"group {group.group_id[:50]}: {place} is at {committed}"
        if len(group.group_id.encode()) > 32_767:
            yield f"a group whose name has {len(group.group_id)} characters"
    for transaction in node.transactions.all():
        current = transaction.current
        if not (0 <= current.producer_id < 10**9 and -1 <= current.producer_epoch <= PRODUCER_EPOCH_MAX):
            yield f"transactional id {transaction.transactional_id[:50]}: {current}"
        if not 0 < current.timeout_ms <= TRANSACTION_MS_MAX:
            yield f"a transaction with a timeout of {current.timeout_ms} ms"
