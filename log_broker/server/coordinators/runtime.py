"""
The life of a coordinator, of whatever it coordinates: machines by name, each in the partition its name hashes to.

    shard loaded ──▶ resume ──▶ events of clients, ticks of time ──▶ effects ──▶ removed, when nothing would be lost
    shard resigned ──▶ timers are dropped, and requests without an answer get NOT_COORDINATOR
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from log_broker.core.cluster.image import ClusterImage
from log_broker.errors import ErrorCode
from log_broker.records.batch import BatchHeader
from log_broker.records.control import EndMarker
from log_broker.records.record import Record
from log_broker.server.coordinators.deadlines import Deadlines
from log_broker.server.coordinators.shards import Shard, ShardHost, Shards, Token


class Machine(Protocol):
    """What is coordinated under one name. It decides on events and returns effects, to be run in order."""

    @property
    def name(self) -> str: ...

    @property
    def is_forgettable(self) -> bool:
        """Whether nothing would be lost if it did not exist."""
        ...

    def next_deadline_ms(self) -> int | None:
        """When `Kind.tick` must be called next, at the latest."""
        ...

    def handle(self, event: Any, now_ms: int) -> Sequence[Any]: ...


M = TypeVar("M", bound=Machine)


class Kind(Protocol[M]):
    """What is particular to one kind of machines."""

    @property
    def expiry_interval_ms(self) -> int:
        """How often `expire` is called for every machine."""
        ...

    def replay(self, shard: Shard[M], header: BatchHeader, content: Record | EndMarker) -> None:
        """Take in one entry of the log; one that cannot be read is said in the log and left out."""
        ...

    def replayed(self, shard: Shard[M]) -> Iterable[None]:
        """Finish what was read; others get a turn after each step."""
        ...

    def resume(self, machine: M) -> Sequence[Any]:
        """Return the effects of what had been decided before the shard was loaded."""
        ...

    def perform(self, shard: Shard[M], machine: M, effect: Any) -> None:
        """Run one effect."""
        ...

    def settled(self, shard: Shard[M], machine: M) -> None:
        """All effects of an event have been begun, or the shard has resigned."""
        ...

    def tick(self, machine: M, now_ms: int) -> Sequence[Any]: ...

    def expire(self, machine: M, now_ms: int) -> Sequence[Any]: ...

    def not_coordinator(self, event: Any) -> Any:
        """Return the answer of its kind that says NOT_COORDINATOR."""
        ...


class CoordinatorRuntime(Generic[M]):
    """All machines of one kind whose partition of `topic` this node leads."""

    def __init__(
        self,
        node: ShardHost,
        kind: Kind[M],
        topic: str,
        partition_of: Callable[[ClusterImage, str], int | None],
    ) -> None:
        self._node = node
        self._kind = kind
        self._partition_of = partition_of
        self.shards: Shards[M] = Shards(node, topic, self)
        self._deadlines = Deadlines(node, self._time_is_up)
        self._expiration: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to call `Kind.expire` at its interval."""
        self._expiration = self._node.loop.call_later(self._kind.expiry_interval_ms / 1000, self._expire)

    def stop(self) -> None:
        self.shards.close()
        self._deadlines.drop_all()
        if self._expiration is not None:
            self._expiration.cancel()

    # What `Shards` asks.

    def replay(self, shard: Shard[M], header: BatchHeader, content: Record | EndMarker) -> None:
        self._kind.replay(shard, header, content)

    def replayed(self, shard: Shard[M]) -> Iterable[None]:
        return self._kind.replayed(shard)

    def loaded(self, shard: Shard[M]) -> None:
        for machine in list(shard.items.values()):
            self.run(shard, machine, self._kind.resume(machine))

    def resigned(self, shard: Shard[M]) -> None:
        for name, machine in shard.items.items():
            self._deadlines.drop(name)
            self._kind.settled(shard, machine)
        for token, event in list(shard.waiting.items()):
            shard.answer(token, self._kind.not_coordinator(event))

    # What is known here.

    def check(self, name: str) -> ErrorCode:
        """Say whether this node coordinates what has a name, and if not, why not."""
        return self.shards.error_of(self._partition_of(self._node.cluster, name))

    def shard_of(self, name: str) -> Shard[M] | None:
        """Return the shard that a name belongs to, once it is loaded."""
        return self.shards.get(self._partition_of(self._node.cluster, name))

    def find(self, name: str) -> M | None:
        shard = self.shard_of(name)
        return None if shard is None else shard.items.get(name)

    def all(self) -> Iterator[M]:
        return (machine for shard in self.shards.loaded() for machine in shard.items.values())

    # Events and their effects.

    def ask(self, shard: Shard[M], machine: M, token: Token, event: Any) -> None:
        """Hand in the event of a client, which brings `token` and is answered by it, whatever becomes of the shard."""
        self.handle(shard, machine, event)
        shard.note(token, event)

    def handle(self, shard: Shard[M], machine: M, event: Any) -> None:
        """
        Hand in an event; it is dropped where the shard has resigned.

        The name's next coordinator reads from the log what was stored, and every request here has been answered.
        """
        if not shard.is_resigned:
            self.run(shard, machine, machine.handle(event, self._node.clock_ms()))

    def run(self, shard: Shard[M], machine: M, effects: Sequence[Any]) -> None:
        """Run effects of a machine and see that its next deadline is met; forget it if nothing would be lost."""
        for effect in effects:
            self._kind.perform(shard, machine, effect)
        if not shard.is_loaded or shard.is_resigned:
            return
        self._kind.settled(shard, machine)
        name = machine.name
        if machine.is_forgettable:
            if shard.items.get(name) is machine:
                del shard.items[name]
                self._deadlines.drop(name)
            return
        # A timer that is not needed any more is left for the next deadline.
        deadline = machine.next_deadline_ms()
        if deadline is not None:
            self._deadlines.meet(name, deadline)

    def for_each(self, decide: Callable[[M], Sequence[Any]]) -> None:
        """Run what is decided about every machine."""
        for shard in self.shards.loaded():
            for machine in list(shard.items.values()):
                self.run(shard, machine, decide(machine))

    def _time_is_up(self, name: str) -> None:
        shard = self.shard_of(name)
        machine = None if shard is None else shard.items.get(name)
        if shard is not None and machine is not None:
            self.run(shard, machine, self._kind.tick(machine, self._node.clock_ms()))

    def _expire(self) -> None:
        self.for_each(lambda machine: self._kind.expire(machine, self._node.clock_ms()))
        self.start()
