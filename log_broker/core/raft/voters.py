"""
Who votes in the metadata quorum, as of each offset of its log.

A replica is told apart by its node id and the id of its data directory (KIP-853): a node that lost its disk has
forgotten what it promised, and must not be counted as the voter that promised it. The newest voter set in the log is
in force from the moment it is written, committed or not, and a truncation brings the one before it back.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple


class ReplicaKey(NamedTuple):
    """A node together with its data directory."""

    node_id: int
    directory_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter:
    """A member of the quorum and where it listens."""

    key: ReplicaKey
    host: str = ""
    port: int = 0


class VoterSet:
    """The voters of one configuration, at most one per node id."""

    __slots__ = ("_voters", "keys", "majority")

    def __init__(self, voters: Iterable[Voter]) -> None:
        self._voters = {voter.key.node_id: voter for voter in voters}
        self.keys = frozenset(voter.key for voter in self._voters.values())
        self.majority = len(self.keys) // 2 + 1  # also of an even number: two of four would be two quorums

    def __iter__(self) -> Iterator[Voter]:
        return iter(self._voters.values())

    def __contains__(self, key: ReplicaKey) -> bool:
        return key in self.keys

    def __len__(self) -> int:
        return len(self.keys)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VoterSet) and self._voters == other._voters

    def __hash__(self) -> int:
        return hash(self.keys)

    def get(self, node_id: int) -> Voter | None:
        """Return the voter on a node."""
        return self._voters.get(node_id)

    def others(self, key: ReplicaKey) -> list[ReplicaKey]:
        """List the voters except `key`, by node id."""
        return sorted(self.keys - {key})

    def has_majority(self, keys: Iterable[ReplicaKey]) -> bool:
        """Whether these replicas, of which only voters count, are more than half of the set."""
        return len(self.keys.intersection(keys)) >= self.majority

    def with_voter(self, voter: Voter) -> "VoterSet":
        return VoterSet((*self, voter))

    def without_voter(self, key: ReplicaKey) -> "VoterSet":
        return VoterSet(voter for voter in self if voter.key != key)

    def encode(self) -> bytes:
        """Return the value of a voters record."""
        rows = [[*voter.key, voter.host, voter.port] for voter in sorted(self, key=lambda voter: voter.key)]
        return json.dumps({"version": 0, "voters": rows}, separators=(",", ":")).encode()

    @staticmethod
    def decode(value: bytes) -> "VoterSet":
        """Read what `encode` wrote; ValueError for anything else."""
        try:
            rows = json.loads(value)["voters"]
            return VoterSet(Voter(key=ReplicaKey(row[0], row[1]), host=row[2], port=row[3]) for row in rows)
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"not a voters record: {value[:200]!r}") from error


BOOTSTRAP_OFFSET = -1  # where the set stands that the node was formatted with


class VoterHistory:
    """The voter sets of a log, by the offset of the record that holds each; offsets strictly rise."""

    def __init__(self, bootstrap: VoterSet) -> None:
        self._sets: list[tuple[int, VoterSet]] = [(BOOTSTRAP_OFFSET, bootstrap)]
        self.current = bootstrap

    @property
    def current_offset(self) -> int:
        """The offset of the record in force."""
        return self._sets[-1][0]

    def add(self, offset: int, voters: VoterSet) -> None:
        assert offset > self.current_offset, "voter sets come in the order of the log"
        self._sets.append((offset, voters))
        self.current = voters

    def truncate(self, end_offset: int) -> None:
        """Forget the sets at or behind the end of the log."""
        while self._sets[-1][0] >= end_offset:
            self._sets.pop()
        self.current = self._sets[-1][1]

    def before(self, end_offset: int) -> VoterSet:
        """Return the set in force for a log that ends here: what a snapshot of it must carry."""
        return next(voters for offset, voters in reversed(self._sets) if offset < end_offset)

    def start_at(self, end_offset: int, voters: VoterSet) -> None:
        """Begin again with what a snapshot that ends here carries."""
        self._sets = [(end_offset - 1, voters)]
        self.current = voters

    def compact(self, end_offset: int) -> None:
        """Forget the sets that a snapshot ending here has made superfluous: all but the last before it."""
        keep = max(index for index, (offset, _) in enumerate(self._sets) if offset < end_offset)
        del self._sets[:keep]


def replicated_offset(ends: Iterable[int], majority: int) -> int:
    """Return the offset that at least `majority` of these log ends have reached."""
    return sorted(ends, reverse=True)[majority - 1]
