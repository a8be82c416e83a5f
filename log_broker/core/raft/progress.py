"""What a leader of the quorum knows of another replica: how far it is, and when it surely followed."""

from typing import Any


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
        self.caught_up_ms: int | None = None  # when it last had all that we had

    def fetched(self, link: Any) -> None:
        """Take note of a fetch that came on a connection."""
        if link == self._link and self._answered_ms is not None:
            self.followed_ms = self._answered_ms
        self._link, self._answered_ms = link, None

    def answered(self, now_ms: int) -> None:
        """Take note that its last fetch is answered now."""
        self._answered_ms = now_ms
