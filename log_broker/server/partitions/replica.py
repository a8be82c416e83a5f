"""
One replica of a partition on this node: what its parts share.

`PartitionRuntime` puts the parts together. Everything in them happens in the event loop's thread, except the jobs that
a pool runs: writes, syncs, truncation.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from log_broker.core.partition.partition import Partition
from log_broker.core.partition.replication import IsrProposal
from log_broker.core.raft.lease import Lease
from log_broker.records.contracts import Fault
from log_broker.server.partitions.reopening import distrust_cached
from log_broker.server.process.machine import Pool
from log_broker.storage.files import FileSystem
from log_broker.storage.log import PartitionLog

_log = logging.getLogger(__name__)

# Runs work that takes more than a turn of the event loop in a thread; the future is of what it returns or raises.
Aside = Callable[..., "asyncio.Future[Any]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """What a node's replicas need to know of its place in the cluster."""

    node_id: int
    lease: Lease | None = None
    replica_lag_time_max_ms: int = 30_000


class Replica:
    """The core that decides, the log on the disk, and what both run on. `core` and `log` change only in `replace`."""

    def __init__(
        self,
        core: Partition,
        log: PartitionLog,
        *,
        partition: int,
        topic_id: UUID,
        files: FileSystem,
        pool: Pool,
        loop: asyncio.AbstractEventLoop,
        clock_ms: Callable[[], int],
        membership: Membership | None = None,
        aside: Aside | None = None,
    ) -> None:
        """Without `aside` long work runs in the threads of the event loop."""
        self.topic = core.state.topic
        self.partition = partition
        self.topic_id = topic_id
        self.core = core
        self.state = core.state
        self.log = log
        self.files = files
        self.pool = pool
        self.loop = loop
        self.clock_ms = clock_ms
        self.membership = membership if membership is not None else Membership(node_id=0)
        self.aside: Aside = partial(loop.run_in_executor, None) if aside is None else aside
        self.is_closed = False
        self.is_deleted = False
        self.opened_at = core.state.written_end
        self.appended_bytes = 0  # since it was opened
        self.storage_errors = 0  # since it was opened
        self.on_isr_wanted: Callable[[IsrProposal], None] = _report_unasked
        self.on_damaged: Callable[[int], None] = self._report_damage
        self.on_refused: Callable[[Sequence[Fault]], None] = _count_nowhere
        self.on_write_failed: Callable[[], None] = _suspect_nothing

    @property
    def appended_records(self) -> int:
        """How many records have been appended since it was opened."""
        return self.state.written_end - self.opened_at

    @property
    def trusted_from(self) -> int:
        """What lies before it may have come from the disk since it was checked, and is checked again when read."""
        return max(self.opened_at, self.log.segments[-1].base_offset)

    def steady_ms(self) -> int:
        """Monotonic time: what a leader measures its followers by."""
        return int(self.loop.time() * 1000)

    def go_offline(self, reason: str) -> None:
        """Take no more until the log has been read from the disk again, by `reopen` or at the next start."""
        self.state.offline_reason = reason
        if not self.is_deleted:  # else a directory of this name is another log's
            distrust_cached(self.files, self.log.directory, reason)

    def replace(self, core: Partition, log: PartitionLog) -> None:
        """Go on with what the disk was found to hold."""
        self.core, self.state, self.log = core, core.state, log
        self.opened_at = min(self.opened_at, core.state.written_end)

    def _report_damage(self, offset: int) -> None:
        _log.error("%s-%d is damaged at offset %d, and no other replica has a copy", self.topic, self.partition, offset)


def _count_nowhere(faults: Sequence[Fault]) -> None:
    """Refused records are counted where the node says so."""


def _suspect_nothing() -> None:
    """The disk is watched by who keeps several logs on it."""


def _report_unasked(proposal: IsrProposal) -> None:
    """The leader of a partition with followers is given somebody to ask before it leads."""
    _log.error("no controller is known to ask for the ISR %s", proposal.isr)
