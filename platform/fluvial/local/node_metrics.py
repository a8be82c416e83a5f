"""What nodes of the local platform tell in their metrics that no request of the Kafka protocol asks for."""

import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fluvial.local.state import Platform

TIMEOUT_SECONDS = 2.0
SCHEMAS_TOPIC = "_schemas"  # written by the registry itself, which decides what comes twice


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMetrics:
    """Of one node: what a power cut would take, and batches of producers that are not idempotent, by topic."""

    unsynced_records: int
    unsynced_bytes: int
    unsequenced_batches: Mapping[str, int]


def node_metrics_of(data_dir: Path, timeout_seconds: float = TIMEOUT_SECONDS) -> dict[int, NodeMetrics]:
    """Ask each node that serves metrics; those that do not, or do not answer, are left out."""
    platform = Platform.load(data_dir)
    found = {}
    for node in platform.nodes if platform is not None else ():
        if node.metrics_url is None:
            continue
        try:
            with urllib.request.urlopen(node.metrics_url, timeout=timeout_seconds) as answer:  # noqa: S310 - http
                found[node.id] = read_node_metrics(answer.read().decode())
        except (OSError, ValueError):
            continue
    return found


def read_node_metrics(text: str) -> NodeMetrics:
    """Read metrics in the text format of Prometheus; what is not among them is 0."""
    from prometheus_client.parser import text_string_to_metric_families

    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    totals = {sample.name: int(sample.value) for sample in samples}
    return NodeMetrics(
        unsynced_records=totals.get("log_broker_all_unsynced_records", 0),
        unsynced_bytes=totals.get("log_broker_all_unsynced_bytes", 0),
        unsequenced_batches={
            sample.labels["topic"]: int(sample.value)
            for sample in samples
            if sample.name == "log_broker_topic_unsequenced_batches_total"
            and sample.value
            and sample.labels["topic"] != SCHEMAS_TOPIC
        },
    )
