"""Clusters that were there before fluvial: Apache Kafka from its own jars, and a Spark standalone cluster."""

from local_platform import FLUVIAL

from tests.bench.broker.servers import Kafka
from tests.free_ports import free_port
from tests.standalone_spark import StandaloneSpark, Started


class ExistingClusters(StandaloneSpark):
    """Apache Kafka and two registries over it as well."""

    def _start_all(self) -> None:
        kafka = Kafka(self.folder / "kafka")
        self._stack.callback(kafka.kill)
        kafka.start()
        self.bootstrap_server = kafka.address
        registries = [self._registry() for _ in range(2)]
        for each in registries:
            each[1].await_line("are served at")
        self.registry_url = ",".join(url for url, _ in registries)
        self._start_spark()

    @property
    def words(self) -> tuple[str, ...]:
        """How a command is told of them."""
        return (
            *("--bootstrap-server", self.bootstrap_server),
            *("--registry-url", self.registry_url),
            *super().words,
        )

    def _registry(self) -> tuple[str, Started]:
        port = free_port()
        command = [str(FLUVIAL), "schema", "serve", "--bootstrap-server", self.bootstrap_server, "--port", str(port)]
        return f"http://127.0.0.1:{port}", self._start(f"registry-{port}", command)
