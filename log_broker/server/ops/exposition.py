"""
A node's counts in the text format of Prometheus, collected when they are asked for.

Imported by who exports them only: a broker that nobody watches does not load the client library.
"""

from collections import defaultdict
from collections.abc import Iterator, Sized
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, ProcessCollector, make_asgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from log_broker.core.fetch.session import FetchSessions
from log_broker.server.net.ports import HasMemory
from log_broker.server.ops.loop_lag import LoopLag
from log_broker.server.partitions.ports import Partitions
from log_broker.server.process.counters import Durations
from log_broker.server.process.ports import Cluster, HasCounters
from log_broker.server.quorum.ports import HasAuthority
from log_broker.server.replication.ports import HasReplicas
from log_broker.server.replication.replica_fetches import ReplicaFetches
from log_broker.wire.apis import ApiKey

# The bounds that are exported, as powers of two in µs: 64 µs … 16.8 s.
_BOUNDS = range(6, 25)


class MetricsHost(Cluster, HasAuthority, HasCounters, HasMemory, HasReplicas, Partitions, Protocol):
    """What metrics are read from."""

    @property
    def connections(self) -> Sized: ...

    @property
    def fetch_sessions(self) -> FetchSessions: ...

    @property
    def loop_lag(self) -> LoopLag: ...

    @property
    def replica_fetches(self) -> ReplicaFetches: ...

    @property
    def tasks(self) -> Sized: ...


def metrics_app(node: MetricsHost) -> Any:
    """Return an ASGI application that answers with the node's metrics; it must run in the node's event loop."""
    return make_asgi_app(metrics_registry(node))


def metrics_registry(node: MetricsHost) -> CollectorRegistry:
    """Return the registry that collects the node's metrics and its process's; to be read in the node's event loop."""
    registry = CollectorRegistry()
    registry.register(NodeCollector(node))
    ProcessCollector(registry=registry)
    return registry


class NodeCollector(Collector):
    """Reads everything again at each collection; the cost grows with the number of partitions, not with the load."""

    def __init__(self, node: MetricsHost) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        yield from self._traffic()
        yield from self._requests()
        yield from self._topics()
        yield from self._at_risk()
        yield from self._replication()

    def _traffic(self) -> Iterator[Metric]:
        node, counters = self._node, self._node.counters
        yield _counter("received_bytes", "Bytes read from clients.", counters.bytes_in)
        yield _counter("sent_bytes", "Bytes written to clients.", counters.bytes_out)
        yield _counter("connections_accepted", "Connections that clients have opened.", counters.connections)
        yield _counter("sign_ins", "Sign-ins of clients and other nodes, those repeated too.", counters.sign_ins)
        yield _counter("sign_ins_refused", "Sign-ins that were refused.", counters.sign_ins_refused)
        yield _counter(
            "unclean_elections", "Elections in which records may have been lost.", counters.unclean_elections
        )
        yield _gauge("connections", "Connections that are open.", len(node.connections))
        yield _gauge("tasks", "Requests whose work goes on beside the event loop's turn.", len(node.tasks))
        yield from self._event_loop()
        yield _gauge("queued_bytes", "Bytes of requests and answers beyond each connection's share.", node.memory.held)
        yield _gauge("connections_waiting", "Connections that wait for memory to be read from.", node.memory.waiting)
        yield _gauge("fetch_sessions", "Fetch sessions that are kept.", len(node.fetch_sessions))
        held = node.fetch_sessions.partition_count
        yield _gauge("fetch_session_partitions", "Partitions that all fetch sessions hold.", held)

    def _event_loop(self) -> Iterator[Metric]:
        lag = self._node.loop_lag
        seconds = HistogramMetricFamily(
            "log_broker_event_loop_lag_seconds",
            "How late a timer of the event loop ran: nobody is answered meanwhile. Measured ten times a second.",
        )
        seconds.add_metric([], _cumulated(lag.durations), lag.durations.sum_micros / 1e6)
        yield seconds
        yield _gauge(
            "event_loop_lag_longest_seconds", "The latest that a timer ran since the node started.", lag.longest_seconds
        )

    def _requests(self) -> Iterator[Metric]:
        counters = self._node.counters
        requests = CounterMetricFamily("log_broker_requests", "Requests that have been answered.", labels=["api"])
        for api_key, durations in counters.requests.items():
            if durations.count:
                requests.add_metric([ApiKey(api_key).name.lower()], durations.count)
        yield requests
        seconds = HistogramMetricFamily(
            "log_broker_request_seconds",
            "From a request's arrival to its response's write; a fetch waits in it.",
            labels=["api"],
        )
        for api_key in (ApiKey.PRODUCE, ApiKey.FETCH):
            durations = counters.requests[api_key]
            seconds.add_metric([api_key.name.lower()], _cumulated(durations), durations.sum_micros / 1e6)
        yield seconds

    def _topics(self) -> Iterator[Metric]:
        records: dict[str, int] = defaultdict(int)
        received: dict[str, int] = defaultdict(int)
        stored: dict[str, int] = defaultdict(int)
        unsequenced: dict[str, int] = defaultdict(int)
        partitions = offline = storage_errors = 0
        for runtime in self._node.logs.partitions():
            partitions += 1
            offline += runtime.offline_reason is not None
            records[runtime.topic] += runtime.replica.appended_records
            received[runtime.topic] += runtime.replica.appended_bytes
            storage_errors += runtime.replica.storage_errors
            stored[runtime.topic] += runtime.size_bytes()
            if not runtime.is_internal:
                unsequenced[runtime.topic] += runtime.replica.core.appends.unsequenced_batches
        yield _gauge("partitions", "Replicas of partitions on this node.", partitions)
        yield self._refused()
        offline += len(self._node.logs.unidentified)
        yield _gauge("offline_partitions", "Replicas here that take no writes after a disk error.", offline)
        yield _counter("storage_errors", "Writes, syncs and reads of logs that the disk failed.", storage_errors)
        plain = "Batches of producers that are not idempotent, whose retries may be stored twice."
        for family, of_topic in (
            (CounterMetricFamily("log_broker_topic_unsequenced_batches", plain, labels=["topic"]), unsequenced),
            (
                CounterMetricFamily(
                    "log_broker_topic_records", "Records appended, those copied from a leader too.", labels=["topic"]
                ),
                records,
            ),
            (
                CounterMetricFamily(
                    "log_broker_topic_bytes", "Bytes appended, as stored, copied ones too.", labels=["topic"]
                ),
                received,
            ),
            (GaugeMetricFamily("log_broker_topic_size_bytes", "Bytes of log on disk.", labels=["topic"]), stored),
        ):
            for topic, value in of_topic.items():
                family.add_metric([topic], value)
            yield family

    def _refused(self) -> Metric:
        refused = CounterMetricFamily(
            "log_broker_records_refused",
            "Records that had their batches refused, at most 100 of a batch.",
            labels=["topic", "cause"],
        )
        for (topic, cause), count in self._node.counters.refused.items():
            if topic in self._node.cluster.topics:
                refused.add_metric([topic, cause.value], count)
        return refused

    def _at_risk(self) -> Iterator[Metric]:
        """What is acknowledged and not synced: partitions without any have no line, the totals are always there."""
        places = ["topic", "partition"]
        families = [
            GaugeMetricFamily("log_broker_unsynced_offset", "First offset a power cut would take.", labels=places),
            GaugeMetricFamily("log_broker_unsynced_records", "Records that a power cut would take.", labels=places),
            GaugeMetricFamily("log_broker_unsynced_bytes", "Bytes that a power cut would take.", labels=places),
            GaugeMetricFamily(
                "log_broker_unsynced_seconds", "Age of the oldest record that is not synced.", labels=places
            ),
        ]
        records = size = age_ms = 0
        for runtime in self._node.logs.partitions():
            found = runtime.keeping.at_risk()
            if found.records:
                place = [runtime.topic, str(runtime.partition)]
                values = (found.first_offset, found.records, found.bytes, found.age_ms / 1000)
                for family, value in zip(families, values, strict=True):
                    family.add_metric(place, value)
                records += found.records
                size += found.bytes
                age_ms = max(age_ms, found.age_ms)
        yield from families
        yield _gauge("all_unsynced_records", "Records that a power cut would take, of all topics.", records)
        yield _gauge("all_unsynced_bytes", "Bytes that a power cut would take, of all topics.", size)
        yield _gauge(
            "all_unsynced_seconds", "Age of the oldest record of all topics that is not synced.", age_ms / 1000
        )

    def _replication(self) -> Iterator[Metric]:
        """What Kafka has in ReplicaManager, BrokerTopicMetrics, FetcherLagMetrics and KafkaController."""
        node, replicas = self._node, self._node.replicas
        leaders = under_replicated = under_min_isr = at_min_isr = 0
        for topic in node.cluster.topics.values():
            for index, partition in enumerate(topic.partitions):
                if partition.leader == node.config.node_id:
                    leaders += 1
                    in_sync, needed = len(partition.isr), topic.min_isr(index)
                    under_replicated += in_sync < partition.factor
                    under_min_isr += in_sync < needed
                    at_min_isr += in_sync == needed
        yield _gauge("leaders", "Partitions that this node leads.", leaders)
        yield _gauge("under_replicated_partitions", "Partitions led here with replicas out of sync.", under_replicated)
        yield _gauge("under_min_isr_partitions", "Partitions led here that take no acks=all.", under_min_isr)
        yield _gauge(
            "at_min_isr_partitions",
            "Partitions led here that would take no acks=all with one replica less in sync.",
            at_min_isr,
        )
        if node.authority.is_active:
            leaderless = sum(
                not node.cluster.is_alive(partition.leader)
                for topic in node.cluster.topics.values()
                for partition in topic.partitions
            )
            yield _gauge("leaderless_partitions", "Partitions of the cluster that nobody leads.", leaderless)
        yield _counter(
            "isr_shrinks", "Replicas that fell out of sync, as their leaders here had it.", replicas.isr.shrinks
        )
        yield _counter("isr_expands", "Replicas that came into sync.", replicas.isr.expands)
        yield _counter("isr_failed_updates", "Changes of an ISR that did not come about.", replicas.isr.failures)
        yield _counter(
            "replication_received_bytes", "Bytes of records fetched from leaders.", replicas.fetchers.bytes_in
        )
        yield _counter("replication_sent_bytes", "Bytes of records sent to followers.", node.replica_fetches.bytes_out)
        yield _counter(
            "replication_corrupt_batches", "Fetched batches that were damaged.", replicas.fetchers.corrupt_fetches
        )
        yield _counter(
            "repaired_batches", "Batches that were repaired with a replica's copy.", replicas.repair.repaired
        )
        lag = GaugeMetricFamily(
            "log_broker_replica_lag", "Offsets behind the leader, where any.", labels=["topic", "partition", "leader"]
        )
        lag_max = 0
        for runtime, leader_id, offsets in replicas.fetchers.lags():
            if offsets:
                lag.add_metric([runtime.topic, str(runtime.partition), str(leader_id)], offsets)
                lag_max = max(lag_max, offsets)
        yield lag
        yield _gauge("replica_lag_max", "The most offsets that a replica here is behind its leader.", lag_max)


def _counter(name: str, text: str, value: int) -> Metric:
    return CounterMetricFamily(f"log_broker_{name}", text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"log_broker_{name}", text, value=value)


def _cumulated(durations: Durations) -> list[tuple[str, float]]:
    """Return (upper bound in seconds, how many took less) for each bound, and the total."""
    buckets: list[tuple[str, float]] = []
    for power in _BOUNDS:
        buckets.append((str(2**power / 1e6), sum(durations.buckets[: power + 1])))
    return [*buckets, ("+Inf", durations.count)]
