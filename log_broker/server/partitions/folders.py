"""
The folders of partitions under a data directory: found by their names, identified, moved aside, removed.
"""

import asyncio
import errno
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from uuid import UUID, uuid4

from log_broker.config.broker import TopicConfig
from log_broker.core.cluster.image import METADATA_TOPIC
from log_broker.server.partitions.compactor import TopicPartition
from log_broker.server.partitions.offset_checkpoints import FoundPartition
from log_broker.server.process.machine import Pool
from log_broker.storage.checkpoints import PARTITION_METADATA_FILE, decode_topic_id, encode_topic_id
from log_broker.storage.files import FileSystem
from log_broker.storage.recovery import holds_records

_log = logging.getLogger(__name__)

STRAY_SECONDS = 24 * 3600.0
_DELETED_SUFFIX = "-delete"
_STRAY_SUFFIX = "-stray"


class UnidentifiedPartitionError(OSError):
    """A folder has records and does not say of which topic: they are shown to nobody as another topic's."""

    def __init__(self, folder: Path, metadata: bytes) -> None:
        """`metadata` is what the folder's file would have to say for the partition that was asked for."""
        wanted = metadata.decode().strip().replace("\n", ", ")
        super().__init__(
            errno.EIO,
            f"{folder / PARTITION_METADATA_FILE} does not say of which topic the records in its folder are. If they are"
            f" of this one, write into it ({wanted}), each on a line of its own; if not, or if another replica has"
            f" them, move {folder} away. It is looked at again every few seconds",
        )


class PartitionFolders:
    """What stands under which name on the disk."""

    def __init__(self, loop: asyncio.AbstractEventLoop, files: FileSystem, pool: Pool, data_dir: Path) -> None:
        self.unidentified: dict[TopicPartition, FoundPartition] = {}  # with records, and of a topic unknown
        self._loop = loop
        self._files = files
        self._pool = pool
        self._data_dir = data_dir
        self._timers: list[asyncio.TimerHandle] = []

    def path(self, place: TopicPartition) -> Path:
        """Return the folder of a partition, there or not."""
        topic, partition = place
        return self._data_dir / f"{topic}-{partition}"

    def find(
        self,
        names: Iterable[str],
        topic_config_of: Callable[[str], TopicConfig],
        found_as: Callable[[TopicPartition, UUID, TopicConfig], FoundPartition],
    ) -> list[FoundPartition]:
        """Look through the folders at start; return those that can be opened. Raises OSError."""
        found: list[FoundPartition] = []
        for name in sorted(names):
            if name.endswith(_DELETED_SUFFIX):
                self._files.remove_tree(self._data_dir / name)
                continue
            if name.endswith(_STRAY_SUFFIX):
                self._remove_later(self._data_dir / name)
                continue
            place = _place_of(name)
            if place is None or place[0] == METADATA_TOPIC:
                continue
            topic_id = self.topic_id_of(place)
            entry = found_as(place, topic_id or UUID(int=0), topic_config_of(place[0]))
            if topic_id is not None:
                found.append(entry)
            elif holds_records(self._files, self.path(place)):
                self.unidentified[place] = entry
            else:
                self.put_aside(place)  # made, and never written to
        return found

    def make(self, place: TopicPartition, topic_id: UUID) -> None:
        """Make the folder of a new partition; raises OSError."""
        folder = self.path(place)
        self._files.make_directory(folder)
        # Without a sync, for which the event loop would wait: the log's first write sees to that.
        self._files.replace(folder / PARTITION_METADATA_FILE, encode_topic_id(topic_id), sync=False)

    def is_of(self, place: TopicPartition, topic_id: UUID) -> bool:
        """
        Look again at an unidentified folder; say whether it is this topic's by now.

        Raises UnidentifiedPartitionError while it does not say.
        """
        found = self.topic_id_of(place)
        if found is None and holds_records(self._files, self.path(place)):
            raise UnidentifiedPartitionError(self.path(place), encode_topic_id(topic_id))
        return found == topic_id

    def topic_id_of(self, place: TopicPartition) -> UUID | None:
        """Read of which topic a folder's records are; None where it cannot be told."""
        path = self.path(place) / PARTITION_METADATA_FILE
        try:
            return decode_topic_id(self._files.read(path))
        except OSError as error:
            _log.error("%s cannot be read: %s", path, error)
            return None

    def rename_deleted(self, place: TopicPartition) -> Path:
        """Give the folder of a deleted partition a name under which the next start removes it. Raises OSError."""
        return self._rename(place, _DELETED_SUFFIX)

    def put_aside(self, place: TopicPartition) -> None:
        """Give a folder another name, under which its files stay for a day. Raises OSError."""
        self._remove_later(self._rename(place, _STRAY_SUFFIX))

    def stop(self) -> None:
        """Remove nothing more."""
        for timer in self._timers:
            timer.cancel()

    def _rename(self, place: TopicPartition, suffix: str) -> Path:
        folder = self.path(place)
        renamed = folder.with_name(f"{folder.name}.{uuid4().hex}{suffix}")
        self._files.rename(folder, renamed)
        return renamed

    def _remove_later(self, stray: Path) -> None:
        """Remove what was put aside, after whoever may miss it has had a day."""

        def remove() -> None:
            self._timers.remove(handle)
            self._pool.submit(lambda: self._files.remove_tree(stray), lambda _: None)

        handle = self._loop.call_later(STRAY_SECONDS, remove)
        self._timers.append(handle)


def _place_of(directory_name: str) -> TopicPartition | None:
    topic, dash, partition = directory_name.rpartition("-")
    if not dash or not topic or not (partition.isascii() and partition.isdigit()):
        return None
    return topic, int(partition)
