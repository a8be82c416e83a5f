"""
Years of a cluster whose disks, machines and racks fail at published rates, as events one after the other.

A broker that is out leaves the ISRs of its partitions as soon as it is noticed and the controller has its turn; when
it is back it copies what it missed and is in sync again. A disk that is lost takes its copies with it until an operator
has done something and they are copied anew. Nothing moves a replica by itself: the product does not.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import ceil, inf

import numpy as np

from tests.bench.capacity.layout import Layout
from tests.bench.capacity.rates import HOUR, MINUTE, YEAR_SECONDS, Rates

LATER_SECONDS = 10 * MINUTE
DISK, MACHINE, RACK = "disk", "machine", "rack"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How fast the cluster copies, what its controller takes for a change, and what its operators do."""

    bytes_a_broker: float
    written_a_broker: float  # bytes a second
    spare_bytes: float  # that a broker copies a second beside its load
    round_seconds: float  # of the controller's core, to tell all brokers of the changes that came together
    partition_seconds: float = 0.0  # and for each partition of a change
    changes_a_round: int = 1
    least_in_sync: int = 2  # min.insync.replicas
    session_seconds: float = 9.0
    ended_seconds: float = 1.5  # until a process that has ended is replaced as leader
    operator_seconds: float = HOUR  # from the loss of a disk until somebody has put an empty one in
    given_up_seconds: float = inf  # of a machine that is out; then an empty one is put in its place
    is_shared: bool = False  # a lost broker is removed and the others copy, instead of an empty one in its place
    is_careful: bool = False  # restarts leave out, for now, who would take a partition below its minimum

    def catching_up(self, seconds: float) -> float:
        """Return how long a broker copies what it has missed in so many seconds."""
        return min(seconds * self.written_a_broker, self.bytes_a_broker) / self.spare_bytes

    def rebuilding(self, partners: int) -> float:
        """Return how long the copies of a lost broker take; they are read from its partners."""
        return self.bytes_a_broker / (self.spare_bytes * (partners if self.is_shared else 1))


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What has happened in so many years."""

    years: float
    partitions: int
    failures: Counter[str] = field(default_factory=Counter)
    below_minutes: float = 0.0  # partition-minutes with fewer in sync than min.insync.replicas
    stalled_minutes: float = 0.0  # partition-minutes until a loss was noticed and decided on
    lost: int = 0  # partitions all of whose copies are gone
    seconds_to_all: dict[str, list[float]] = field(default_factory=dict)  # by kind: until all copies are in sync
    queue_most: int = 0  # changes that the controller had before it
    wait_most: float = 0.0  # seconds until the last of them was done
    controller_seconds: float = 0.0  # of its core, for changes

    @property
    def available(self) -> float:
        """The share of all partition-minutes in which acks=all was answered."""
        whole = self.partitions * self.years * YEAR_SECONDS / MINUTE
        return 1 - (self.below_minutes + self.stalled_minutes) / whole

    @property
    def controller_share(self) -> float:
        return self.controller_seconds / (self.years * YEAR_SECONDS)

    def seconds_at(self, kind: str, share: float) -> float:
        """Return a quantile of the times until all copies are in sync again, 0 where nothing of the kind failed."""
        found = self.seconds_to_all.get(kind)
        return float(np.quantile(found, share)) if found else 0.0


class Simulation:
    """One run; equal seeds give equal failures, whatever the layout and the set-up."""

    def __init__(self, layout: Layout, rates: Rates, setup: Setup, seed: int) -> None:
        self._layout = layout
        self._rates = rates
        self._setup = setup
        self._dice = {kind: np.random.default_rng([seed, at]) for at, kind in enumerate((DISK, MACHINE, RACK))}
        shape = layout.shape
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._now = 0.0
        self._end = 0.0
        self._controller_free = 0.0
        self._waiting: deque[tuple[float, int]] = deque()  # changes, and when they will be done
        self._queue = 0
        self._rolling: list[int] = []
        self._partners = [layout.partners(broker) for broker in range(shape.brokers)]
        self._least = min(setup.least_in_sync, shape.copies)
        self._below = 0
        self.in_sync = np.full(len(layout.replicas), shape.copies)
        self.copies = np.full(len(layout.replicas), shape.copies)
        self.reasons = np.zeros(shape.brokers, dtype=np.int64)  # why a broker is out: so many
        self._is_in = np.ones(shape.brokers, dtype=bool)
        self._has_disk = np.ones(shape.brokers, dtype=bool)
        self._left = np.zeros(shape.brokers)
        self._returns = Counter[int]()
        self._why: dict[int, str] = {}
        self.outcome = Outcome(years=0, partitions=len(layout.replicas))

    def run(self, years: float) -> Outcome:
        """Let things fail for so many years, and then everything come back."""
        self.outcome.years = years
        self._end = years * YEAR_SECONDS
        shape, rates = self._layout.shape, self._rates
        self._fail(DISK, rates.disk * shape.brokers, self._lose_disk)
        self._fail(MACHINE, rates.machine * shape.brokers, self._lose_machine)
        self._fail(RACK, rates.rack * shape.racks, self._lose_rack)
        for turn in range(int(rates.rolls * years)):
            self._at(turn * YEAR_SECONDS / rates.rolls, self._roll)
        while self._events:
            at, _, happen = heappop(self._events)
            self._pass_to(at)
            happen()
        self._pass_to(self._end)
        return self.outcome

    def _at(self, when: float, happen: Callable[[], None]) -> None:
        heappush(self._events, (when, next(self._numbers), happen))

    def _pass_to(self, now: float) -> None:
        until = min(now, self._end)
        self.outcome.below_minutes += self._below * max(until - self._now, 0.0) / MINUTE
        self._now = max(now, self._now)

    def _fail(self, kind: str, a_year: float, happen: Callable[[], None]) -> None:
        """Have something of a kind fail now and then, until the end."""
        gap = self._dice[kind].exponential(YEAR_SECONDS / a_year) if a_year else inf
        if self._now + gap < self._end:
            self._at(self._now + gap, partial(self._failed, kind, a_year, happen))

    def _failed(self, kind: str, a_year: float, happen: Callable[[], None]) -> None:
        self.outcome.failures[kind] += 1
        happen()
        self._fail(kind, a_year, happen)

    def _lose_machine(self) -> None:
        dice, rates = self._dice[MACHINE], self._rates
        broker = int(dice.integers(self._layout.shape.brokers))
        is_short = dice.random() < rates.short_share
        seconds = dice.exponential(rates.short_seconds if is_short else rates.long_seconds)
        replaced = self._setup.given_up_seconds + self._setup.rebuilding(self._partners[broker])
        self._leave((broker,), MACHINE, self._setup.session_seconds)
        self._at(self._now + min(seconds, replaced), partial(self._return, (broker,), has_missed=seconds < replaced))

    def _lose_rack(self) -> None:
        dice, shape = self._dice[RACK], self._layout.shape
        brokers = tuple(np.flatnonzero(shape.rack_of == dice.integers(shape.racks)).tolist())
        self._leave(brokers, RACK, self._setup.session_seconds)
        self._at(self._now + dice.exponential(self._rates.rack_seconds), partial(self._return, brokers))

    def _lose_disk(self) -> None:
        broker = int(self._dice[DISK].integers(self._layout.shape.brokers))
        if not self._has_disk[broker]:
            return  # the one before is not replaced yet
        self._has_disk[broker] = False
        held = self._layout.held[broker]
        self.copies[held] -= 1
        self.outcome.lost += int((self.copies[held] == 0).sum())
        self._leave((broker,), DISK, self._setup.ended_seconds)
        rebuilt = self._setup.operator_seconds + self._setup.rebuilding(self._partners[broker])
        self._at(self._now + rebuilt, partial(self._rebuilt, broker))

    def _rebuilt(self, broker: int) -> None:
        self._has_disk[broker] = True
        self.copies[self._layout.held[broker]] += 1
        self._return((broker,), has_missed=False)

    def _roll(self) -> None:
        """Restart all brokers, one after the other; a roll that is not over yet goes on instead."""
        is_under_way = bool(self._rolling)
        self._rolling = self._rolling or list(range(self._layout.shape.brokers))
        if not is_under_way:
            self._restart_next()

    def _restart_next(self) -> None:
        if self._now >= self._end:
            self._rolling.clear()
        safe = (at for at, broker in enumerate(self._rolling) if not self._setup.is_careful or self._may_stop(broker))
        at = next(safe, None)
        if at is None:
            if self._rolling:
                self._at(self._now + LATER_SECONDS, self._restart_next)
            return
        broker = self._rolling.pop(at)
        if not self._is_in[broker]:
            self._at(self._now, self._restart_next)  # it starts anew anyway
            return
        self._leave((broker,), "restart", 0.0)
        self._at(self._now + self._rates.restart_seconds, partial(self._return, (broker,), self._restart_next))

    def _may_stop(self, broker: int) -> bool:
        in_sync = self.in_sync[self._layout.held[broker]]
        return not self._is_in[broker] or bool((in_sync > self._least).all())

    def _leave(self, brokers: Iterable[int], why: str, noticed_seconds: float) -> None:
        """Take brokers out; their partitions wait until that is noticed and decided on."""
        leaving = [broker for broker in brokers if self._is_in[broker]]
        self.reasons[list(brokers)] += 1
        decided = self._decide(len(leaving), sum(len(self._layout.held[broker]) for broker in leaving))
        for broker in leaving:
            self._is_in[broker] = False
            self._left[broker] = self._now
            self._why[broker] = why
            self._change(broker, -1)
            if noticed_seconds:
                seconds = noticed_seconds + decided - self._now
                self.outcome.stalled_minutes += len(self._layout.held[broker]) * seconds / MINUTE

    def _return(
        self, brokers: Iterable[int], then: Callable[[], None] | None = None, *, has_missed: bool = True
    ) -> None:
        """Start brokers again that nothing keeps out any more; each registers, and is in sync after a while."""
        self.reasons[list(brokers)] -= 1
        back = [broker for broker in brokers if not self.reasons[broker]]
        started = self._decide(2 * len(back))  # registered and unfenced
        for broker in back:
            missed = self._now - self._left[broker] if has_missed else 0.0
            copied = started + self._setup.catching_up(missed)
            self._returns[broker] += 1
            self._at(copied, partial(self._join, broker, self._returns[broker], then))
        if then is not None and not back:
            self._at(self._now, then)

    def _join(self, broker: int, at: int, then: Callable[[], None] | None) -> None:
        """Enter the ISRs, which each of the partners asks the controller for; nothing if it has been out again."""
        if not self.reasons[broker] and self._returns[broker] == at:
            joined = self._decide(self._partners[broker], len(self._layout.held[broker]))
            self._is_in[broker] = True
            self._change(broker, 1)
            self.outcome.seconds_to_all.setdefault(self._why[broker], []).append(joined - self._left[broker])
        if then is not None:
            then()

    def _change(self, broker: int, by: int) -> None:
        held = self._layout.held[broker]
        before = int((self.in_sync[held] < self._least).sum())
        self.in_sync[held] += by
        self._below += int((self.in_sync[held] < self._least).sum()) - before

    def _decide(self, changes: int, partitions: int = 0) -> float:
        """Give the controller so many changes, of so many partitions; return when the last of them is done."""
        if not changes:
            return self._now
        setup = self._setup
        seconds = ceil(changes / setup.changes_a_round) * setup.round_seconds + partitions * setup.partition_seconds
        self._controller_free = max(self._controller_free, self._now) + seconds
        self.outcome.controller_seconds += seconds
        self.outcome.wait_most = max(self.outcome.wait_most, self._controller_free - self._now)
        while self._waiting and self._waiting[0][0] <= self._now:
            self._queue -= self._waiting.popleft()[1]
        self._waiting.append((self._controller_free, changes))
        self._queue += changes
        self.outcome.queue_most = max(self.outcome.queue_most, self._queue)
        return self._controller_free
