"""A replicated log broker that speaks Kafka's protocol."""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from log_broker.interfaces import RecordValidator
    from log_broker.server.embedded import EmbeddedBroker


def embedded(
    *,
    data_dir: "Path | None" = None,
    port: int = 0,
    validator: "RecordValidator | None" = None,
    **settings: str,
) -> "AbstractContextManager[EmbeddedBroker]":
    """
    Run a real broker in a thread of this process for as long as the context lasts.

        with log_broker.embedded(num_partitions="3") as broker:
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

    Port 0 takes any free one. Without a `data_dir` it lives in a temporary one, which goes with it. `validator` judges
    the records of topics that ask for it, which without one take none. Settings have Kafka's names with underscores
    for dots. Raises BindError, DataDirectoryError or BrokerError if it cannot start.
    """
    from log_broker.server.embedded import run_embedded

    named = {name.replace("_", "."): text for name, text in settings.items()}
    return run_embedded(data_dir=data_dir, port=port, validator=validator, settings=named)
