"""The faults of a simulated cluster: those of every world, and some that only a whole broker knows."""

from collections.abc import Mapping, Sequence

from log_broker.sim.broker_process import BrokerMachine
from log_broker.sim.kernel import Action
from log_broker.sim.nemesis import KINDS, Harm, Victims, lie_in_ambush
from log_broker.sim.node import Node
from log_broker.wire.apis import ApiKey

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


def _ambush(victims: Victims, nodes: Sequence[Node], amount: float) -> Action:
    return lie_in_ambush(victims, AMBUSHES, amount)


CLUSTER_KINDS: Mapping[str, Harm] = {**KINDS, "shut down": _shut_down, "ambush": _ambush}

CLUSTER_WEIGHTS = {
    "kill": 4,
    "cut power": 4,
    "cut power of all": 1,
    "lose disk": 2,
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
    "ambush": 3,
}
