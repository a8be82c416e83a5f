"""Playing the faults one after the other on a copy under load."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from fluvial.cluster.doctor import SESSION_MS
from fluvial.rehearsal.copy import ClusterCopy, RehearsalError, copy_of, until
from fluvial.rehearsal.load import Load
from fluvial.rehearsal.plan import Fault, Outcome, Shape, brokers_of

# Beyond the session of a broker: what a shape that claims to go on may take until it does, on a slow machine.
_PATIENCE_SECONDS = 60.0
# What is given to shapes that claim nothing, once the others go on.
_GRACE_SECONDS = 3.0
_POLL_SECONDS = 0.05

Say = Callable[[str], None]


def rehearse(
    shapes: Sequence[Shape],
    *,
    brokers: int,
    settings: Mapping[str, str],
    faults: Iterable[Fault] = tuple(Fault),
    say: Say = lambda _line: None,
) -> Iterator[Outcome]:
    """
    Copy a cluster of `brokers` nodes and give what each shape makes of each fault, as it comes.

    `settings` are those of a broker. The fault that loses a disk is played last. Raises FluvialError where the copy
    cannot be made, or does not come back after a fault.
    """
    if not shapes:
        raise RehearsalError("nothing to rehearse: the cluster has no topic of users")
    count = brokers_of(brokers, shapes)
    session = int(settings.get("broker.session.timeout.ms") or SESSION_MS) / 1000
    say(f"starting a copy of {count} nodes, with topics of {len(shapes)} shapes")
    with copy_of(count, settings) as copy:
        copy.create(shapes, count)
        with _loads(shapes, copy, count) as loads:
            began = time.monotonic()
            until(lambda: all(load.is_taken_since(began) for load in loads), "taking records in each partition")
            lost: Counter[str] = Counter()
            for fault in sorted(faults, key=list(Fault).index):
                say(f"{fault.value}: {fault.what}")
                yield from _Act(copy, fault, loads, session, lost).play()


@contextmanager
def _loads(shapes: Sequence[Shape], copy: ClusterCopy, partitions: int) -> Iterator[list[Load]]:
    loads = [Load(shape, copy.bootstrap_servers, partitions) for shape in shapes]
    try:
        for load in loads:
            load.start()
        yield loads
    finally:
        for load in loads:
            load.stop()


class _Act:
    """One fault: to a node, until those that claim it go on, and the copy whole again afterwards."""

    def __init__(
        self, copy: ClusterCopy, fault: Fault, loads: Sequence[Load], session_seconds: float, lost: Counter[str]
    ) -> None:
        self._copy = copy
        self._fault = fault
        self._loads = loads
        self._session = session_seconds
        self._lost_before = lost

    def play(self) -> Iterator[Outcome]:
        node = self._node()
        moment = time.monotonic()
        self._strike(node)
        paused = self._watch(moment)
        self._mend(node)
        # Whatever waited for the node goes on now.
        for load in self._loads:
            load_moment = time.monotonic()
            until(lambda load=load, at=load_moment: load.is_taken_since(at), "taking records again")  # type: ignore[misc]
        for load in self._loads:
            acknowledged = load.snapshot()
            missing = len(load.missing(acknowledged))
            name = load.shape.name
            lost = missing - self._lost_before[name]
            self._lost_before[name] = missing
            yield Outcome(
                fault=self._fault,
                shape=load.shape,
                acknowledged=len(acknowledged),
                lost=max(lost, 0),
                paused_seconds=paused.get(name),
            )

    def _node(self) -> int:
        picture = self._copy.picture()
        if self._fault is Fault.CONTROLLER_KILLED:
            if picture.quorum is None or picture.quorum.leader < 0:
                raise RehearsalError("the copy does not say which node leads its quorum")
            return picture.quorum.leader
        led = Counter(each.leader for each in picture.partitions.values() if not each.is_internal)
        controller = -1 if picture.quorum is None else picture.quorum.leader
        # Not the controller, where there is a choice: it has a fault of its own.
        return max(led, key=lambda node: (node != controller, led[node]))

    def _strike(self, node: int) -> None:
        match self._fault:
            case Fault.BROKER_CUT_OFF:
                self._copy.cut_off(node)
            case Fault.DISK_FULL:
                self._copy.fill_disk(node)
            case _:
                self._copy.kill(node)
        if self._fault is Fault.DISK_LOST:
            self._copy.lose_partitions(node, [load.shape for load in self._loads])

    def _watch(self, moment: float) -> dict[str, float]:
        """The seconds after which each shape took records in all partitions; one that did not has none."""
        paused: dict[str, float] = {}
        deadline = moment + self._session + _PATIENCE_SECONDS
        grace: float | None = None
        while (now := time.monotonic()) < min(deadline, grace or deadline) and len(paused) < len(self._loads):
            for load in self._loads:
                if load.shape.name not in paused and load.is_taken_since(moment):
                    paused[load.shape.name] = now - moment
            if grace is None and all(
                each.shape.name in paused or not each.shape.claims_to_go_on for each in self._loads
            ):
                grace = now + _GRACE_SECONDS
            time.sleep(_POLL_SECONDS)
        if self._fault is Fault.BROKER_CUT_OFF:
            # It is to come back as one that others have given up.
            time.sleep(max(0.0, moment + self._session + 1 - time.monotonic()))
        return paused

    def _mend(self, node: int) -> None:
        if self._fault is Fault.BROKER_CUT_OFF:
            self._copy.let_go_on(node)
        if self._fault is Fault.DISK_FULL:
            self._copy.free_disk(node)
        self._copy.restore()
