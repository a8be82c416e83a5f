"""
What goes into the Raft machine and what comes out of it.

Storage effects (SaveQuorumState, AppendEntries, TruncateLog, InstallSnapshot, TakeSnapshot, DropLogPrefix) reach the
disk in list order. Nothing behind a SaveQuorumState is done before it is on the disk: a vote that is sent has been
remembered. Sends need not wait for an AppendEntries; what depends on it waits for `Stored`.
"""

from typing import Any, NamedTuple

from log_broker.core.raft.log import Entry, OffsetAndEpoch, Snapshot
from log_broker.core.raft.messages import RaftRequest, RaftResponse
from log_broker.core.raft.voters import ReplicaKey, Voter
from log_broker.errors import ErrorCode


class QuorumState(NamedTuple):
    """What a replica must never forget: the epoch it has seen, whom it voted for in it, and who led it."""

    epoch: int = 0
    leader_id: int = -1
    voted: ReplicaKey | None = None


NOTHING_PROMISED = QuorumState()

# Events


class RequestReceived(NamedTuple):
    """
    A request from a replica; `token` leads back to whoever asked, `link` is the connection that it came on.

    On one connection a replica fetches again only when it has had its answer.
    """

    token: Any
    body: RaftRequest
    link: Any = None


class ResponseReceived(NamedTuple):
    """The answer to the request of this process that had this `id`."""

    id: int
    body: RaftResponse


class Stored(NamedTuple):
    """The AppendEntries or InstallSnapshot with this number is on the disk, and so are those before it."""

    number: int


class Propose(NamedTuple):
    """
    Append data entries, all or none, if this replica leads in `epoch`; Proposed answers.

    `epoch` is that of the LeadershipBegan under which the entries were decided.
    """

    epoch: int
    data: tuple[bytes, ...]
    token: Any


class AddVoter(NamedTuple):
    """Make an observer a voter, once it has caught up; VotersChanged answers."""

    voter: Voter
    token: Any


class RemoveVoter(NamedTuple):
    """Make a voter an observer; VotersChanged answers."""

    key: ReplicaKey
    token: Any


class UpdateVoter(NamedTuple):
    """A voter listens elsewhere; VotersChanged answers."""

    voter: Voter
    token: Any


class SnapshotStored(NamedTuple):
    """The state machine's snapshot is on the disk."""

    snapshot: Snapshot


class Resign(NamedTuple):
    """Hand leadership over, if this replica has it: before a controlled shutdown, or to level."""


Command = Propose | AddVoter | RemoveVoter | UpdateVoter | Resign
Event = RequestReceived | ResponseReceived | Stored | SnapshotStored | Command


# Effects


class SaveQuorumState(NamedTuple):
    """Put this on the disk before doing anything that follows."""

    state: QuorumState


class AppendEntries(NamedTuple):
    """Write entries behind the log and sync; then say Stored."""

    number: int
    base_offset: int
    entries: tuple[Entry, ...]


class TruncateLog(NamedTuple):
    """Drop the entries from here on; it must be on the disk before a later AppendEntries begins."""

    end_offset: int


class InstallSnapshot(NamedTuple):
    """Replace log and state machine by a snapshot from the leader; then say Stored."""

    number: int
    snapshot: Snapshot


class TakeSnapshot(NamedTuple):
    """Have the state machine, which has applied all before `id.offset`, make a snapshot; store it, SnapshotStored."""

    id: OffsetAndEpoch
    voters: bytes


class DropLogPrefix(NamedTuple):
    """Entries before this offset, and snapshots older than the newest, are no longer needed."""

    start_offset: int


class SendRequest(NamedTuple):
    """Ask another replica. There is no promise that it arrives; who needs an answer asks again."""

    to: int
    id: int
    body: RaftRequest


class SendResponse(NamedTuple):
    """Answer the request that came with this token; if the asker is gone, so is its interest."""

    token: Any
    body: RaftResponse


class Committed(NamedTuple):
    """These entries are decided for ever: hand the DATA ones to the state machine."""

    base_offset: int
    entries: tuple[Entry, ...]


class Proposed(NamedTuple):
    """
    What became of a Propose: NONE with the offset of its first entry, committed and handed over before this.

    NOT_CONTROLLER without `in_doubt`: nothing was appended. With it, the entries may or may not come to be committed.
    """

    token: Any
    error: ErrorCode
    base_offset: int = -1
    in_doubt: bool = False


class VotersChanged(NamedTuple):
    """What became of an AddVoter or RemoveVoter; NONE once it is committed."""

    token: Any
    error: ErrorCode
    message: str = ""


class LeadershipBegan(NamedTuple):
    """This replica leads, and all entries of earlier epochs have been committed and handed over."""

    epoch: int


class LeadershipEnded(NamedTuple):
    """This replica leads no more; it may have said LeadershipBegan before or not."""

    epoch: int


Effect = (
    SaveQuorumState
    | AppendEntries
    | TruncateLog
    | InstallSnapshot
    | TakeSnapshot
    | DropLogPrefix
    | SendRequest
    | SendResponse
    | Committed
    | Proposed
    | VotersChanged
    | LeadershipBegan
    | LeadershipEnded
)
