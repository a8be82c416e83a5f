"""A replicated log broker that speaks Kafka's protocol."""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from log_broker.interfaces import RecordValidator
    from log_broker.server.embedded import EmbeddedBroker, Setting, Topics


def embedded(
    *,
    data_dir: "Path | None" = None,
    port: int = 0,
    topics: "Topics" = (),
    validator: "RecordValidator | None" = None,
    config: "Mapping[str, Setting] | None" = None,
    **settings: "Setting",
) -> "AbstractContextManager[EmbeddedBroker]":
    """
    Run a real broker in a thread of this process for as long as the context lasts.

        with log_broker.embedded(topics={"orders": 3}, num_partitions=2) as broker:
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

    Port 0 takes any free one. Without a `data_dir` it lives in a temporary one, which goes with it. `topics` are made
    before the context begins: names, or a mapping of names to numbers of partitions. `validator` judges the records of
    topics that ask for it, which without one take none. Settings have Kafka's names, in `config` as they are, as
    keywords with underscores for dots. Several brokers may run at once. Raises BindError, DataDirectoryError or
    BrokerError if it cannot start.
    """
    from log_broker.server.embedded import run_embedded

    named = {name.replace("_", "."): value for name, value in settings.items()} | dict(config or {})
    return run_embedded(data_dir=data_dir, port=port, validator=validator, topics=topics, settings=named)
