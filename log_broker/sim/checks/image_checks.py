"""
What must hold of the cluster's image at each version that any broker comes to, against what the disks really hold.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from log_broker.core.cluster.checks import check_image, check_step
from log_broker.core.cluster.image import ClusterImage
from log_broker.sim.clients.client_link import TopicPartition
from log_broker.sim.kernel.kernel import InvariantError
from log_broker.sim.world.topics import LOSSY, RENEWED

if TYPE_CHECKING:
    from log_broker.sim.world.cluster_world import ClusterWorld

NO_ELECTION: tuple[tuple[int, ...], bool] = ((), False)


class ImageChecks:
    """Looks at each version once, when the first broker has replayed it."""

    def __init__(self, world: "ClusterWorld", on_disk: Mapping[tuple[str, TopicPartition], int]) -> None:
        self._world = world
        self._on_disk = on_disk  # how far each machine holds a partition
        self._last = ClusterImage()
        # (partition, leader epoch) -> who could be elected by right, and whether somebody else was.
        self.elections: dict[tuple[TopicPartition, int], tuple[tuple[int, ...], bool]] = {}
        self._lost: set[str] = set()  # the ids of the directories that went with their disks

    @property
    def newest(self) -> ClusterImage:
        """The newest image that any broker has come to."""
        return self._last

    def disk_lost(self, address: int) -> None:
        """Take note that a broker comes back with another directory, if it does."""
        if address in self._last.brokers:
            self._lost.add(self._last.brokers[address].directory)

    def knows_of_loss(self, image: ClusterImage, address: int) -> bool:
        """Whether an image has a broker with the disk that it has; otherwise it takes it for what it was."""
        known = image.brokers.get(address)
        return known is None or known.directory not in self._lost

    def after(self, version_before: int, image: ClusterImage) -> None:
        """Check the image that an entry of the metadata log has come to, if it is new; raises InvariantError."""
        if image.version <= self._last.version:
            return
        before, self._last = self._last, image.draft()
        for wrong in check_image(image):
            raise InvariantError("each image of the cluster is sound", wrong)
        if before.version == version_before:
            for wrong in check_step(before, image):
                raise InvariantError("each image of the cluster follows from the last", wrong)
        self._note_elections(before, image)
        self._check_eligible(before, image)

    def _note_elections(self, before: ClusterImage, image: ClusterImage) -> None:
        for name in LOSSY:
            then, now = before.topics.get(name), image.topics.get(name)
            if then is None or now is None:
                continue
            for index, (was, partition) in enumerate(zip(then.partitions, now.partitions, strict=True)):
                if partition.leader_epoch > was.leader_epoch and partition.leader >= 0:
                    eligible = (*was.isr, *was.elr)
                    is_unclean = partition.leader not in eligible and partition.recovering
                    self.elections[(name, index), partition.leader_epoch] = eligible, is_unclean

    def _check_eligible(self, before: ClusterImage, image: ClusterImage) -> None:
        """Whoever is in sync or may be elected as if he were has on his disk what is committed."""
        for name, topic in image.topics.items():
            if name == RENEWED:
                continue
            if topic is before.topics.get(name) and image.brokers == before.brokers:
                continue
            if topic.config.fluvial_durability != "fsync-quorum":
                continue
            for index, partition in enumerate(topic.partitions):
                if partition.recovering:
                    continue
                place = (name, index)
                committed = self._world.history.log(place).end_offset
                for address in (*partition.isr, *partition.elr):
                    if not self.knows_of_loss(image, address):
                        continue
                    end = self._on_disk.get((self._world.machines[address].name, place), 0)
                    if end < committed:
                        raise InvariantError(
                            "who may lead holds what is committed",
                            f"{place} is committed up to {committed}; n{address}, in sync {partition.isr} or eligible "
                            f"{partition.elr}, has it up to {end}",
                        )
