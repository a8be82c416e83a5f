"""The controller's log: partition 0 of `__cluster_metadata`, the one copy of what the cluster has agreed on."""

import asyncio
from collections.abc import Callable, Sequence

from log_broker.core.cluster import ClusterImage
from log_broker.core.cluster_records import MetadataRecord, decode, encode
from log_broker.server.internal_log import stored_records
from log_broker.server.partition import PartitionRuntime

Decide = Callable[[ClusterImage], Sequence[MetadataRecord]]


class MetadataLog:
    """Makes decisions durable, one at a time, and replays them into the image."""

    def __init__(self, runtime: PartitionRuntime, image: ClusterImage, applied: Callable[[], None]) -> None:
        self._runtime = runtime
        self._image = image
        self._applied = applied
        self._turn = asyncio.Lock()

    def load(self) -> None:
        """Replay all that is in the log; raises UnknownMetadataRecordError."""
        for record in stored_records(self._runtime):
            if record.value is not None:
                self._image.replay(decode(record.value))

    async def submit(self, decide: Decide) -> None:
        """
        Have `decide` look at the image, make its records durable as one batch, and only then show them.

        `decide` gets a draft that it may replay its own records on. Raises BrokerError, also whatever `decide` raises.
        """
        async with self._turn:
            records = decide(self._image.draft())
            if not records:
                return
            await self._runtime.append_records([(None, encode(record)) for record in records])
            for record in records:
                self._image.replay(record)
            self._applied()
