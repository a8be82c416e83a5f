"""What the members of groups were told: who owns what, and how far each group got."""

from collections import defaultdict
from collections.abc import Sequence

from log_broker.sim.client_link import Place
from log_broker.sim.kernel import InvariantError


class GroupHistory:
    """All groups of a run."""

    def __init__(self) -> None:
        # (group, generation) -> partition -> member
        self._owners: dict[tuple[str, int], dict[Place, str]] = defaultdict(dict)
        self.records: dict[str, int] = defaultdict(int)
        self.generations: dict[str, int] = defaultdict(int)

    def assigned(self, group: str, generation: int, member: str, topic: str, partitions: Sequence[int]) -> None:
        """A member was told what it owns in a generation."""
        self.generations[group] = max(self.generations[group], generation)
        owners = self._owners[group, generation]
        for partition in partitions:
            owner = owners.setdefault((topic, partition), member)
            if owner != member:
                raise InvariantError(
                    "assignments are exclusive",
                    f"{owner} and {member} own {topic}-{partition} in generation {generation} of {group}",
                )

    def processed(self, group: str, place: Place, records: int) -> None:
        self.records[group] += records
