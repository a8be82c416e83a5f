"""
A leader's view of its followers: how far each is, who is in sync, and what that makes of the high watermark.

The rules are Kafka's:

- A follower's fetch offset says that it holds everything before it, on its disk where the topic asks for that.
- The high watermark is the least end in the *maximal* ISR: the committed one and every member of one that was proposed
  and may have been committed meanwhile. A follower that keeps up but is not in yet counts too, or a busy leader would
  never let it in. It does not move while the ISR is smaller than `min.insync.replicas` (KIP-966).
- A follower leaves when it has not had all that the leader had for `replica.lag.time.max.ms`, and joins when it has
  reached the high watermark and the start of the leader's epoch.
- Only the controller changes an ISR. One proposal is under way at a time; until its outcome is known both sets count.

Times are monotonic milliseconds.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from log_broker.errors import ErrorCode

UNKNOWN = -1
NEVER_MS = -(2**62)
RETRY_MS = 500  # after a proposal that came to nothing

# The controller says that it changed nothing; after any other error it may have.
_NOT_ATTEMPTED = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """
    What the cluster's image says of a partition that this node leads; `isr` holds this node.

    `adding` are the replicas that a move has yet to bring up: nothing may depend on them before it is complete.
    """

    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...] = ()
    recovering: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrProposal:
    """What a leader asks of the controller; `broker_epochs` go with `isr`, -1 for the leader, who knows its own."""

    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int


@dataclass(slots=True)
class Follower:
    """One follower as its fetches show it."""

    end: int = UNKNOWN  # it holds all before it
    log_start_offset: int = UNKNOWN
    broker_epoch: int = UNKNOWN
    caught_up_ms: int = NEVER_MS  # when it last had all that the leader had
    fetched_ms: int = NEVER_MS
    leader_end_then: int = 0  # at its last fetch
    joins: bool = False  # keeps up, and the high watermark waits for it
    barred_until_ms: int = NEVER_MS  # the controller did not take it


class Leading:
    """The state of a leader that has followers, for one leader epoch."""

    def __init__(self, node_id: int, leadership: Leadership, *, epoch_start: int, lag_ms_max: int, now_ms: int) -> None:
        self.epoch = leadership.leader_epoch
        self.epoch_start = epoch_start
        self.lag_ms_max = lag_ms_max
        self.partition_epoch = leadership.partition_epoch
        self.recovering = leadership.recovering
        self.replicas = leadership.replicas
        self.adding = leadership.adding
        self.isr = leadership.isr
        self.followers: dict[int, Follower] = {}
        self.proposal: IsrProposal | None = None
        self._node_id = node_id
        self._retry_ms: int | None = None  # when to ask again, for what is proposed or again
        self._counted: tuple[Follower, ...] = ()
        self._check_ms = now_ms
        for replica in self.replicas:
            if replica != node_id:
                caught_up_ms = now_ms if replica in self.isr else NEVER_MS
                self.followers[replica] = Follower(caught_up_ms=caught_up_ms)
        self._count()
        self._plan_check(now_ms)

    @property
    def maximal_isr(self) -> frozenset[int]:
        """Everyone who may be in the ISR that the controller goes by."""
        return frozenset(self.isr) | frozenset(self.proposal.isr if self.proposal is not None else ())

    def lacks_replicas(self, min_insync_replicas: int) -> bool:
        """Whether the ISR is smaller than what acks=all asks for, which is no more than there are meant to be."""
        return len(self.isr) < min(min_insync_replicas, len(self.replicas) - len(self.adding))

    @property
    def waits_for_followers(self) -> bool:
        """Whether there is anyone but the leader whose end counts."""
        return bool(self._counted)

    def watermark(self, own_end: int) -> int:
        """Return the offset before which everyone who counts has everything."""
        for follower in self._counted:
            own_end = min(own_end, follower.end)
        return own_end

    def fetched(
        self,
        replica_id: int,
        broker_epoch: int,
        offset: int,
        log_start_offset: int,
        *,
        leader_end: int,
        now_ms: int,
    ) -> bool:
        """Take note that a follower holds all before `offset`; say whether it is one, and not one from the past."""
        follower = self.followers.get(replica_id)
        if follower is None or offset > leader_end or UNKNOWN < broker_epoch < follower.broker_epoch:
            return False
        follower.broker_epoch = broker_epoch
        if offset >= leader_end:
            follower.caught_up_ms = now_ms
        elif offset >= follower.leader_end_then:
            follower.caught_up_ms = max(follower.caught_up_ms, follower.fetched_ms)
        follower.fetched_ms = now_ms
        follower.leader_end_then = leader_end
        follower.end = offset
        follower.log_start_offset = log_start_offset
        if not follower.joins and replica_id not in self.isr and self._keeps_up(follower, leader_end, now_ms):
            follower.joins = now_ms >= follower.barred_until_ms
            self._count()
        return True

    def wanted(self, high_watermark: int, leader_end: int, now_ms: int) -> IsrProposal | None:
        """Return the ISR to ask the controller for now, if there is one."""
        if self._retry_ms is not None and now_ms < self._retry_ms:
            return None
        self._retry_ms = None
        if self.proposal is not None:
            self._retry_ms = now_ms + self.lag_ms_max
            return self.proposal
        isr = tuple(replica for replica in self.replicas if self._belongs(replica, high_watermark, leader_end, now_ms))
        if set(isr) == set(self.isr):
            return None
        self.proposal = IsrProposal(
            isr=isr,
            broker_epochs=tuple(
                UNKNOWN if replica == self._node_id else self.followers[replica].broker_epoch for replica in isr
            ),
            leader_epoch=self.epoch,
            partition_epoch=self.partition_epoch,
        )
        self._retry_ms = now_ms + self.lag_ms_max
        self._count()
        return self.proposal

    def joins_at(self, replica_id: int) -> bool:
        """Whether a fetch of this follower may be what lets it in: asked with every fetch, so it must be cheap."""
        return self.proposal is None and replica_id not in self.isr

    def settled(self, leadership: Leadership, now_ms: int) -> bool:
        """
        Take the state that the controller has committed; say whether it was new.

        A proposal was for the partition epoch before: it became this state, or can never be committed any more.
        """
        if leadership.leader_epoch != self.epoch or leadership.partition_epoch <= self.partition_epoch:
            return False
        before = self.isr
        self.partition_epoch = leadership.partition_epoch
        self.recovering = leadership.recovering
        self.replicas = leadership.replicas
        self.adding = leadership.adding
        self.isr = leadership.isr
        self.proposal = self._retry_ms = None
        for replica in [replica for replica in self.followers if replica not in self.replicas]:
            del self.followers[replica]
        for replica in self.replicas:
            if replica != self._node_id and replica not in self.followers:
                self.followers[replica] = Follower(caught_up_ms=now_ms if replica in self.isr else NEVER_MS)
        for replica, follower in self.followers.items():
            if replica in self.isr:
                follower.joins = False
                if replica not in before:
                    follower.caught_up_ms = now_ms
            elif replica in before:
                # Put out: it counts again when it is seen to keep up.
                follower.joins, follower.caught_up_ms, follower.leader_end_then = False, NEVER_MS, 2**63 - 1
                follower.fetched_ms = NEVER_MS
        self._count()
        self._plan_check(now_ms)
        return True

    def refused(self, error: ErrorCode, now_ms: int) -> None:
        """Take the controller's refusal of the proposal, or that nobody knows what became of it."""
        if self.proposal is None:
            return
        if error in _NOT_ATTEMPTED:
            for replica in self.proposal.isr:
                if replica not in self.isr:
                    self.followers[replica].barred_until_ms = now_ms + RETRY_MS
                    self.followers[replica].joins = False
            self.proposal = None
            self._count()
        self._retry_ms = now_ms + RETRY_MS
        self._check_ms = min(self._check_ms, self._retry_ms)

    def next_deadline_ms(self) -> int:
        """When `check` must be called next."""
        return self._check_ms

    def check(self, leader_end: int, now_ms: int) -> None:
        """Note who keeps up no longer; `wanted` then says what follows."""
        for follower in self.followers.values():
            if follower.joins and not self._keeps_up(follower, leader_end, now_ms):
                follower.joins = False
        self._count()
        self._plan_check(now_ms)

    def _plan_check(self, now_ms: int) -> None:
        """Find when somebody may have fallen behind; one that is behind in time alone is looked at again soon."""
        at_ms = now_ms + self.lag_ms_max
        for replica, follower in self.followers.items():
            if replica in self.isr or follower.joins:
                due_ms = follower.caught_up_ms + self.lag_ms_max + 1
                at_ms = min(at_ms, due_ms if due_ms > now_ms else now_ms + self.lag_ms_max // 4 + 1)
        if self._retry_ms is not None:
            at_ms = min(at_ms, max(self._retry_ms, now_ms + 1))
        self._check_ms = at_ms

    def _keeps_up(self, follower: Follower, leader_end: int, now_ms: int) -> bool:
        return follower.end == leader_end or now_ms - follower.caught_up_ms <= self.lag_ms_max

    def _belongs(self, replica: int, high_watermark: int, leader_end: int, now_ms: int) -> bool:
        if replica == self._node_id:
            return True
        follower = self.followers[replica]
        if replica in self.isr:
            return self._keeps_up(follower, leader_end, now_ms)
        # Only its fetches let it in: a silent one has all before a high watermark that stands still as well.
        return (
            now_ms - follower.fetched_ms <= self.lag_ms_max
            and follower.end >= high_watermark
            and follower.end >= self.epoch_start
            and now_ms >= follower.barred_until_ms
        )

    def _count(self) -> None:
        maximal = self.maximal_isr
        self._counted = tuple(
            follower for replica, follower in self.followers.items() if replica in maximal or follower.joins
        )


def merged(ranges: list[tuple[int, int]], first: int, end: int) -> None:
    """Add [first, end) behind the ranges in `ranges`, joined with the last where they touch."""
    if ranges and ranges[-1][1] == first:
        ranges[-1] = (ranges[-1][0], end)
    else:
        ranges.append((first, end))


def records_in(ranges: Iterable[tuple[int, int]], first: int, end: int) -> int:
    """Return how many offsets of [first, end) lie in `ranges`."""
    return sum(max(min(last, end) - max(start, first), 0) for start, last in ranges)
