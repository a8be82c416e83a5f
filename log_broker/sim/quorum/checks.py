"""
The promises of the metadata quorum, looked at after each event: what Raft's paper proves, and what clients are told.

Each check costs the same however long the run: it looks at what the last event changed. Log matching, for one, is shown
by induction: an entry is compared once, when it is appended, together with the epoch of the entry before it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from log_broker.core.raft.effects import (
    AppendEntries,
    Effect,
    InstallSnapshot,
    SendRequest,
    SendResponse,
    TruncateLog,
)
from log_broker.core.raft.leader import Leader
from log_broker.core.raft.log import Entry, EntryKind
from log_broker.core.raft.messages import FetchRequest, VoteResponse
from log_broker.core.raft.voters import ReplicaKey, VoterHistory, VoterSet
from log_broker.sim.kernel.kernel import InvariantError
from log_broker.sim.quorum.process import Command, Ledger

if TYPE_CHECKING:
    from log_broker.core.raft.replica import Recovered
    from log_broker.sim.quorum.process import QuorumProcess
    from log_broker.sim.quorum.world import QuorumWorld


class _Told:
    """What one replica has told others, and so must not forget: by its disk, not by its process."""

    __slots__ = ("acknowledged", "durable_end", "durable_epoch", "epoch", "voters")

    def __init__(self) -> None:
        self.epoch = 0
        self.acknowledged = 0
        self.durable_end = 0
        self.durable_epoch = 0  # of the last entry before it
        self.voters: VoterSet | None = None


class QuorumChecks:
    """Looks on, and raises InvariantError as soon as a promise is broken."""

    def __init__(self, world: "QuorumWorld") -> None:
        self._world = world
        self.leaders: dict[int, ReplicaKey] = {}
        self.votes: dict[tuple[ReplicaKey, int], ReplicaKey] = {}
        self.committed: list[Entry] = []
        self.lost_disks = 0
        self._voters = world.bootstrap  # as far as is committed
        self._entries: dict[tuple[int, int], tuple[Entry, int]] = {}  # (offset, epoch) -> entry, epoch before it
        self._written: set[tuple[int, Entry]] = set()
        self._told: dict[ReplicaKey, _Told] = {}
        self._high_watermarks: dict[tuple[ReplicaKey, int], int] = {}
        self._ledger = Ledger()  # of the committed entries, for every replica to equal
        self._digests: list[int] = [0]  # by end offset
        self._decided: dict[int, int] = {}  # epoch -> how far all was committed by its end
        self._effective: set[tuple[int, int]] = set()

    @property
    def epochs(self) -> int:
        """How many epochs have had a leader."""
        return len(self.leaders)

    def told(self, key: ReplicaKey) -> _Told:
        return self._told.setdefault(key, _Told())

    def recovered(self, key: ReplicaKey, found: "Recovered") -> None:
        """A replica has read its disk."""
        told = self.told(key)
        end = found.log_start.offset + len(found.entries)
        if found.state.epoch < told.epoch:
            raise InvariantError("promises kept", f"{key} was in epoch {told.epoch} and is back in {found.state.epoch}")
        if end < told.acknowledged:
            raise InvariantError(
                "durable before told", f"{key} acknowledged {told.acknowledged} and is back with {end}"
            )
        voted = self.votes.get((key, found.state.epoch))
        if voted is not None and found.state.voted != voted:
            raise InvariantError("promises kept", f"{key} voted for {voted}, and is back with {found.state}")
        for offset, entry in enumerate(found.entries, found.log_start.offset):
            if (offset, entry) not in self._written:
                raise InvariantError("read as it was written", f"{key} finds {entry} at {offset}")
        told.durable_end = end
        told.durable_epoch = found.entries[-1].epoch if found.entries else found.log_start.epoch
        if self.committed and key in self._voters:
            self._for_ever(self._voters)

    def before(self, process: "QuorumProcess", effect: Effect) -> None:
        """A replica is about to do something."""
        key = process.key
        match effect:
            case SendRequest():
                told = self.told(key)
                told.epoch = max(told.epoch, effect.body.epoch)
                if isinstance(effect.body, FetchRequest):
                    told.acknowledged = max(told.acknowledged, effect.body.log_end.offset)
            case SendResponse():
                body = effect.body
                told = self.told(key)
                told.epoch = max(told.epoch, body.epoch)
                if isinstance(body, VoteResponse) and body.vote_granted:
                    self._granted(key, effect)
            case AppendEntries():
                self._appended(process, effect)
            case TruncateLog(end_offset):
                told = self.told(key)
                told.acknowledged = min(told.acknowledged, end_offset)
                told.durable_end = min(told.durable_end, end_offset)
            case InstallSnapshot():
                told = self.told(key)
                told.acknowledged = told.durable_end = 0

    def stored(self, process: "QuorumProcess", end_offset: int) -> None:
        """A replica's log is on its disk up to here."""
        told = self.told(process.key)
        log = process.raft.replica.log
        told.durable_end = end_offset
        if log.start_offset <= end_offset <= log.end_offset:  # else the log has moved on, and this will be told again
            told.durable_epoch = log.epoch_at(end_offset - 1)

    def applied(self, process: "QuorumProcess", base_offset: int, entries: Sequence[Entry]) -> None:
        """A replica has handed committed entries to its state machine."""
        committed = self.committed
        if base_offset > len(committed):
            raise InvariantError("state machine safety", f"{process.key} applies {base_offset} of {len(committed)}")
        for offset, entry in enumerate(entries, base_offset):
            if offset < len(committed):
                if committed[offset] != entry:
                    raise InvariantError(
                        "state machine safety", f"{process.key} applies {entry} at {offset}, was {committed[offset]}"
                    )
            else:
                self._commit(offset, entry)
                self._decided[process.raft.replica.epoch] = offset + 1
        self._on_majority(process)
        self._same_ledger(process)

    def loaded(self, process: "QuorumProcess") -> None:
        """A replica has replaced its state machine by a snapshot."""
        self._same_ledger(process)

    def after(self, process: "QuorumProcess") -> None:
        """An event on this node is over."""
        raft = process.raft
        epoch = raft.replica.epoch
        told = self.told(process.key)
        if epoch < told.epoch:
            raise InvariantError("epochs only grow", f"{process.key} goes from {told.epoch} to {epoch}")
        if epoch > self._world.epoch_max():
            raise InvariantError("epochs are within bounds", f"{process.key} is in epoch {epoch}")
        role = raft.role
        if isinstance(role, Leader):
            first = self.leaders.get(epoch)
            if first is None:
                self.leaders[epoch] = process.key
                self._complete(process)
            elif first != process.key:
                raise InvariantError("one leader per epoch", f"{first} and {process.key} lead in epoch {epoch}")
        if raft.replica.voters.current is not told.voters:
            self._voters_in_force(process)
            told.voters = raft.replica.voters.current
        at = (process.key, process.node.incarnation)
        if raft.replica.high_watermark < self._high_watermarks.get(at, 0):
            raise InvariantError(
                "high watermark only grows", f"{process.key} falls back to {raft.replica.high_watermark}"
            )
        self._high_watermarks[at] = raft.replica.high_watermark
        if raft.replica.high_watermark > raft.replica.log.end_offset:
            raise InvariantError("high watermark within the log", f"{process.key} at {raft.replica.high_watermark}")

    def acknowledged(self, command: Command) -> None:
        """A client was told that its command is in."""
        if command not in self._effective:
            raise InvariantError("acknowledged is committed", f"{command} was acknowledged and is not in the log")

    def complete(self, process: "QuorumProcess", acknowledged: int) -> None:
        """At the end: a replica has everything, once."""
        if process.ledger.end_offset != len(self.committed):
            raise InvariantError(
                "all catch up", f"{process.key} has applied {process.ledger.end_offset} of {len(self.committed)}"
            )
        self._same_ledger(process)
        if sum(process.ledger.last.values()) < acknowledged:
            raise InvariantError("acknowledged exactly once", f"{process.ledger.last} for {acknowledged} acknowledged")

    def _granted(self, key: ReplicaKey, effect: SendResponse) -> None:
        """One vote an epoch; what was asked stands in the request that the token leads to."""
        request = effect.token.body
        if request.pre_vote:
            return
        first = self.votes.setdefault((key, request.epoch), request.candidate)
        if first != request.candidate:
            raise InvariantError(
                "one vote per epoch", f"{key} votes for {first} and {request.candidate} in epoch {request.epoch}"
            )

    def _appended(self, process: "QuorumProcess", effect: AppendEntries) -> None:
        offset = effect.base_offset
        log = process.raft.replica.log
        if offset + len(effect.entries) > log.end_offset or offset <= log.start_offset:
            before = None  # by the time this effect is run the log has moved on: the entry before is not at hand
        else:
            before = log.epoch_at(offset - 1)
        for entry in effect.entries:
            self._written.add((offset, entry))
            if entry.kind is EntryKind.VOTERS and isinstance(process.raft.role, Leader):
                self._may_change(process, offset, entry.epoch)
            if before is not None:
                known = self._entries.setdefault((offset, entry.epoch), (entry, before))
                if known != (entry, before):
                    raise InvariantError("log matching", f"{process.key} has {entry} behind {before}, not {known}")
            before = entry.epoch
            offset += 1

    def _complete(self, process: "QuorumProcess") -> None:
        """
        A new leader has all that was committed in the epochs before its own; the last such entry stands for all.

        Who was paused as it was elected may find that out when others have gone on without it, in a later epoch.
        """
        log = process.raft.replica.log
        end = max((end for epoch, end in self._decided.items() if epoch < process.raft.replica.epoch), default=0)
        if end > log.end_offset:
            raise InvariantError("leader completeness", f"{process.key} leads with {log.end_offset} of {end} entries")
        if end > log.start_offset and log.epoch_at(end - 1) != self.committed[end - 1].epoch:
            raise InvariantError("leader completeness", f"{process.key} leads with another entry at {end - 1}")

    def _commit(self, offset: int, entry: Entry) -> None:
        self.committed.append(entry)
        self._ledger.apply((entry,))
        self._digests.append(self._ledger.digest)
        if entry.kind is EntryKind.VOTERS:
            self._voters = VoterSet.decode(entry.data)
        if entry.kind is EntryKind.DATA:
            client, _, sequence = entry.data.partition(b":")
            if self._ledger.last.get(int(client)) == int(sequence):
                self._effective.add((int(client), int(sequence)))

    def _on_majority(self, process: "QuorumProcess") -> None:
        """What a leader calls committed is on the disks of a majority of its voters, and stays so."""
        raft = process.raft
        if not isinstance(raft.role, Leader):
            return
        voters = raft.replica.voters.current
        end = process.ledger.end_offset
        # Of the last entry that it calls so: a successor may have committed more already, which this one has not.
        epoch = self.committed[end - 1].epoch
        logs = [self.told(key) for key in voters.keys]
        holders = [told for told in logs if told.durable_end >= end and told.durable_epoch >= epoch]
        if len(holders) < voters.majority:
            raise InvariantError("committed is durable", f"{end} is committed on {len(holders)} of {len(logs)} disks")
        self._for_ever(voters)

    def _for_ever(self, voters: VoterSet) -> None:
        """Nobody who lacks what is committed could be elected, whatever is lost of what is not on a disk."""
        end = len(self.committed)
        epoch = self.committed[-1].epoch
        logs = [self.told(key) for key in voters.keys]
        for rival in logs:
            if rival.durable_end < end or rival.durable_epoch < epoch:
                rank = (rival.durable_epoch, rival.durable_end)
                for_it = [told for told in logs if (told.durable_epoch, told.durable_end) <= rank]
                if len(for_it) >= voters.majority:
                    raise InvariantError("committed is for ever", f"{end} entries are committed, and could be outvoted")

    def _voters_in_force(self, process: "QuorumProcess") -> None:
        """The voters of a replica are those of its log; what of them is committed is the same for all."""
        voters = process.raft.replica.voters
        end = min(process.raft.replica.high_watermark, len(self.committed))
        if voters.current_offset >= end:
            return
        last = VoterHistory(self._world.bootstrap)
        for offset, entry in enumerate(self.committed[:end]):
            if entry.kind is EntryKind.VOTERS:
                last.add(offset, VoterSet.decode(entry.data))
        if voters.current != last.current:
            raise InvariantError("voters of the log", f"{process.key} has {voters.current.encode()!r} in force")

    def _may_change(self, process: "QuorumProcess", offset: int, epoch: int) -> None:
        """A leader writes a voters record: those before it are committed, and so is an entry of its epoch (KIP-853)."""
        committed = len(self.committed)
        log = process.raft.replica.log
        before = log.between(max(committed, log.start_offset), offset)
        if any(entry.kind is EntryKind.VOTERS for entry in before):
            raise InvariantError("one change of voters at a time", f"{process.key} changes them again at {offset}")
        if not committed or self.committed[-1].epoch < epoch:
            raise InvariantError(
                "one change of voters at a time", f"{process.key} changes them before its epoch counts"
            )

    def _same_ledger(self, process: "QuorumProcess") -> None:
        ledger = process.ledger
        if ledger.end_offset < len(self._digests) and ledger.digest != self._digests[ledger.end_offset]:
            raise InvariantError("state machine safety", f"{process.key} differs at {ledger.end_offset}")
