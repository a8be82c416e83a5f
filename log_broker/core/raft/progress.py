"""What a leader of the quorum knows of the other replicas: how far each is, and when it surely followed."""

from collections.abc import Callable
from typing import Any

from log_broker.core.raft.replica import Replica
from log_broker.core.raft.voters import ReplicaKey, replicated_offset


class Progress:
    """
    How far another replica is: `match` is on its disk, as it said in a fetch that was read at `fetched_ms`.

    That may have waited in a socket for as long as this process stood still. Whoever fetches again on a connection has
    had the answer to the fetch before, so it followed at `followed_ms`, when that was given.
    """

    __slots__ = ("_answered_ms", "_link", "caught_up_ms", "fetched_ms", "followed_ms", "match")

    def __init__(self, now_ms: int) -> None:
        self.match = 0
        self.fetched_ms = self.followed_ms = now_ms
        self._link: Any = None
        self._answered_ms: int | None = None
        self.caught_up_ms: int | None = None  # when it last had all that it is given

    def fetched(self, link: Any) -> None:
        """Take note of a fetch that came on a connection."""
        if link == self._link and self._answered_ms is not None:
            self.followed_ms = self._answered_ms
        self._link, self._answered_ms = link, None

    def answered(self, now_ms: int) -> None:
        """Take note that its last fetch is answered now."""
        self._answered_ms = now_ms


class Followers:
    """The progress of the voters, and of the observers that have fetched of late."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.all = {key: Progress(replica.now_ms) for key in replica.voters.current.others(replica.key)}

    def match(self, key: ReplicaKey) -> int:
        """Return the end of what a replica has on its disk as far as it said; 0 without a word of it."""
        progress = self.all.get(key)
        return 0 if progress is None else progress.match

    def heard(self, key: ReplicaKey) -> Progress:
        """Take note that a replica fetches now."""
        progress = self.all.get(key)
        if progress is None:
            self._forget_observers()
            progress = self.all[key] = Progress(self._replica.now_ms)
        progress.fetched_ms = self._replica.now_ms
        return progress

    def majority_since(self, now_ms: int, time_of: Callable[[Progress], int]) -> int:
        """Return since when that is true of a majority of the voters, this one among them, which `time_of` tells."""
        replica = self._replica
        voters = replica.voters.current
        times = [
            now_ms if key == replica.key else time_of(self.all[key]) if key in self.all else 0 for key in voters.keys
        ]
        return replicated_offset(times, voters.majority)

    def _forget_observers(self) -> None:
        """Forget those that fetch no more, and if there are too many whoever has not fetched for longest."""
        config, voters = self._replica.config, self._replica.voters.current
        oldest_ms = self._replica.now_ms - config.observer_session_ms
        if len(self.all) >= config.observers_max + len(voters):
            fetched_ms = (progress.fetched_ms for key, progress in self.all.items() if key not in voters)
            oldest_ms = max(oldest_ms, min(fetched_ms) + 1)
        self.all = {
            key: progress for key, progress in self.all.items() if key in voters or progress.fetched_ms >= oldest_ms
        }
