"""The faults of a simulated cluster: those of every world, and some that only a whole broker knows."""

from collections.abc import Mapping, Sequence

from log_broker.sim.kernel.kernel import Action
from log_broker.sim.kernel.nemesis import KINDS, Harm, Victims, fill_disk, lie_in_ambush, lose_disk
from log_broker.sim.kernel.node import Node
from log_broker.sim.world.broker_process import BrokerMachine
from log_broker.wire.apis import ApiKey

WITHOUT_ANOTHER_US = 300_000  # by then the loss of a process has been noticed

NO_ROOM = "no room"  # for long enough to hand leaderships over
ROOM_MAX = (0, 100, 1_000)  # bytes

# At what a broker is ambushed: sending one of these requests, or a job of its disk.
AMBUSHES = (
    f"api {ApiKey.FETCH:d}",
    f"api {ApiKey.WRITE_TXN_MARKERS:d}",
    "api 52",  # Vote
    "api 56",  # AlterPartition
    f"api {ApiKey.BROKER_REGISTRATION:d}",
    f"api {ApiKey.BROKER_HEARTBEAT:d}",
    "job",
)


def _shut_down(victims: Victims, nodes: Sequence[Node], amount: float) -> Action | None:
    """Have a broker take its leave, and start it again; one that is not done by then is killed."""
    node = nodes[0]
    assert isinstance(node, BrokerMachine)
    process = node.broker_process
    if process is None or not process.serves:
        return None
    process.shut_down()

    def undo() -> None:
        if node.broker_process is process:
            node.kill()
        node.start()

    return undo


def _lose_disk(victims: Victims, nodes: Sequence[Node], amount: float) -> Action | None:
    """
    Have whoever may do so lose its disk, half of the time while another broker is down, so that few are in sync.

    It is back soon: until others learn that its disk is another one it is taken for what it was.
    """
    other, kernel = nodes[0], victims.kernel
    everyone = [node for node in victims.nodes.values() if node is not other]
    first = int(amount * 997) % len(everyone)
    turns = everyone[first:] + everyone[:first]
    undone: list[Action] = []
    over = False

    def strike() -> None:
        if over:
            return
        start = next(filter(None, (lose_disk(victims, node) for node in turns)), None)
        if start is not None:
            undone.append(start)
            kernel.after(int(amount * 9_973) % 100 * 5_000, start)

    def undo() -> None:
        nonlocal over
        over = True
        for action in undone:
            action()

    if amount >= 0.5:
        strike()
        return undo if undone else None
    other.kill()
    undone.append(other.start)
    kernel.after(WITHOUT_ANOTHER_US, strike)
    return undo


def _late_answers(victims: Victims, nodes: Sequence[Node], amount: float) -> Action | None:
    """Have brokers hear late that a partition belongs to a transaction, which may be over by then."""
    node = nodes[0]
    assert isinstance(node, BrokerMachine)
    late_us = node.streams.late_us
    if ApiKey.ADD_PARTITIONS_TO_TXN in late_us:
        return None
    late_us[ApiKey.ADD_PARTITIONS_TO_TXN] = 10_000 + int(amount * 100_000)

    def undo() -> None:
        del late_us[ApiKey.ADD_PARTITIONS_TO_TXN]

    return undo


def _run_out_of_room(victims: Victims, nodes: Sequence[Node], amount: float) -> Action:
    """Have a disk take nothing, or what is small: part of a batch, or batches but not what their disk is tried with."""
    return fill_disk(nodes[0], ROOM_MAX[int(amount * len(ROOM_MAX))])


def _ambush(victims: Victims, nodes: Sequence[Node], amount: float) -> Action:
    return lie_in_ambush(victims, AMBUSHES, amount)


CLUSTER_KINDS: Mapping[str, Harm] = {
    **KINDS,
    "lose disk": _lose_disk,
    "shut down": _shut_down,
    "late answers": _late_answers,
    NO_ROOM: _run_out_of_room,
    "ambush": _ambush,
}

CLUSTER_WEIGHTS = {
    "kill": 4,
    "cut power": 4,
    "cut power of all": 1,
    "lose disk": 4,
    "shut down": 3,
    "pause": 2,
    "jump clock": 1,
    "isolate": 4,
    "cut one way": 2,
    "cut both ways": 3,
    "split": 2,
    "storm": 2,
    "slow disk": 2,
    "fill disk": 1,
    "late answers": 3,
    "ambush": 3,
}
