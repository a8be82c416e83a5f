"""What the parts of a server ask of the node they run in, whichever part they are: time, tasks, the cluster's image."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from log_broker.config.broker import BrokerConfig
from log_broker.core.cluster.features import Ranges
from log_broker.core.cluster.image import ClusterImage
from log_broker.core.raft.lease import Lease
from log_broker.server.process.counters import Counters
from log_broker.server.process.machine import Machine

T = TypeVar("T")


class Process(Protocol):
    """The event loop, the clock and the tasks of a node."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    def clock_ms(self) -> int:
        """Return the node's wall clock, in ms since the epoch."""
        ...

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` beside the requests, until the node stops at the latest."""
        ...


class Cluster(Protocol):
    """What a node knows of its cluster, and its settings."""

    @property
    def cluster(self) -> ClusterImage: ...

    @property
    def config(self) -> BrokerConfig:
        """The settings that hold now."""
        ...

    @property
    def static_config(self) -> BrokerConfig:
        """The settings that the node was started with."""
        ...


class EventLog(Protocol):
    """Where events are noted that an operator should know of."""

    def note(self, kind: str, text: str, **details: Any) -> None: ...


class HasEvents(Protocol):
    """A node that notes events."""

    @property
    def events(self) -> EventLog: ...


class HasCounters(Protocol):
    """A node that counts."""

    @property
    def counters(self) -> Counters: ...


class HasLease(Protocol):
    """A node that leads only while its lease is valid."""

    @property
    def lease(self) -> Lease: ...


class HasAddress(Protocol):
    """Where a node says that it listens."""

    @property
    def advertised_host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def controller_endpoint(self) -> tuple[str, int]:
        """Where it says that it listens as a voter of the metadata quorum."""
        ...


class HasFeatures(Protocol):
    """A node of some release."""

    @property
    def features(self) -> Ranges:
        """The feature levels that it supports."""
        ...


class HasMachine(Protocol):
    """A node on a machine, which may be a simulated one."""

    @property
    def machine(self) -> Machine: ...
