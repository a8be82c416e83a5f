"""What the members of groups were told: who owns what."""

from collections import defaultdict
from collections.abc import Callable, Collection

from log_broker.sim.clients.client_link import TopicPartition
from log_broker.sim.kernel.kernel import InvariantError


class GroupHistory:
    """
    All groups of a run. Members of `mixed` ones change the protocol, and epochs begin again when nobody is left.
    """

    def __init__(self, now_us: Callable[[], int], mixed: Collection[str]) -> None:
        self._now_us = now_us
        self._mixed = mixed
        # (group, epoch) -> partition -> member
        self._owners: dict[tuple[str, int], dict[TopicPartition, str]] = defaultdict(dict)
        # Who was told last that it owns a partition, and when; nobody when two were told at once.
        self._latest: dict[tuple[str, TopicPartition], tuple[str, int]] = {}

    def taken(self, group: str, epoch: int, member: str, place: TopicPartition, asked_us: int) -> None:
        """A member is told, by an answer to what it asked at `asked_us`, that a partition is its own."""
        if group not in self._mixed:
            owner = self._owners[group, epoch].setdefault(place, member)
            if owner != member:
                raise InvariantError(
                    "assignments are exclusive", f"{owner} and {member} own {place} in epoch {epoch} of {group}"
                )
        # An answer may have been under way while another member was told.
        _, known_us = self._latest.get((group, place), ("", -1))
        self._latest[group, place] = (member if asked_us > known_us else "", self._now_us())

    def committed(self, group: str, member: str, place: TopicPartition, asked_us: int) -> None:
        """The coordinator took an offset of a partition from a member that sent it at `asked_us`."""
        owner, since_us = self._latest[group, place]
        if owner and owner != member and asked_us > since_us:
            raise InvariantError(
                "only its owner commits", f"{member} has committed {place} of {group}, which {owner} owned by then"
            )
