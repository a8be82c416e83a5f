"""
A whole platform inside this process: a real broker and the real schema registry, on ports of their own.

    with embedded_platform() as platform:
        platform.register("schemas")
        platform.send("orders", events("schemas/shop/orders.avsc", 3), key="customer")
"""

import asyncio
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluvial.config import Settings
from fluvial.errors import FluvialError
from fluvial.registry.contracts import Contract, load_contracts, register_all

if TYPE_CHECKING:
    from fluvial.registry.model.registry import Registry
    from log_broker.server.embedded import EmbeddedBroker

HOST = "127.0.0.1"
SECONDS_MAX = 30.0

Key = str | Callable[[Mapping[str, Any]], str | None] | None


class SendError(FluvialError):
    """Events could not be sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedPlatform:
    """
    A running broker and registry; `broker` can also make plain topics (`create_topic`, `unique_topic`).

    `registry` belongs to the broker's thread: from elsewhere it is asked at `registry_url`.
    """

    broker: "EmbeddedBroker"
    registry_url: str
    registry: "Registry" = field(repr=False)

    @property
    def bootstrap_servers(self) -> str:
        """Where Kafka clients connect."""
        return self.broker.bootstrap_servers

    def settings(self, warehouse: Path | str = "warehouse") -> Settings:
        """
        Return what pipelines and commands take to work on this platform, with their tables in `warehouse`.

        On a platform that is secured they sign in as its nodes do, who may do everything.
        """
        from fluvial.testing.access import access_to

        kafka_properties, registry_properties = access_to(self.broker.node.static_config)
        return Settings(
            bootstrap_servers=self.bootstrap_servers,
            registry_url=self.registry_url,
            warehouse=str(warehouse),
            local=False,
            kafka_properties=kafka_properties,
            registry_properties=registry_properties,
        )

    def register(
        self, contracts: Path | str | Iterable[Contract] = "schemas", *, partitions: int = 1
    ) -> list[Contract]:
        """
        Register contracts, those of a folder or loaded ones, and make the topics they name that are not there yet.

        A topic that its contract describes is made as that says, any other with `partitions`.

        Raises ContractError for a file that is wrong, RegistryError for a schema that the registry refuses.
        """
        known = load_contracts(contracts) if isinstance(contracts, str | Path) else list(contracts)
        with self.settings().registry.client() as client:
            register_all(client, known)
        there = self.broker.node.cluster.topics
        described = {each.topic: each.described for each in known}
        for topic in sorted({topic for contract in known for topic in contract.topics} - there.keys()):
            how = described.get(topic)
            if how is None:
                self.broker.create_topic(topic, partitions=partitions)
            else:
                self.broker.create_topic(topic, partitions=how.partitions, config=how.settings)
        return known

    def send(self, topic: str, events: Iterable[Mapping[str, Any]], *, key: Key = None) -> None:
        """
        Write events as Avro under the latest schema of `<topic>-value`, and wait until the log has them.

        `key` is the field that gives the record key, or a function of the event. Raises SendError for an event that
        does not fit the schema, before any is written, and RegistryError where no schema is registered.
        """
        with self.settings().registry.client() as client:
            latest = client.latest(f"{topic}-value")
        encode = _encoder(latest.id, latest.schema)
        self._write(topic, [(_key_of(event, key), encode(number, event)) for number, event in enumerate(events)])

    def send_tombstones(self, topic: str, *keys: str) -> None:
        """Write a record without value for each key: compacted and state tables take such a key away."""
        self._write(topic, [(key, None) for key in keys])

    def _write(self, topic: str, records: Iterable[tuple[str | None, bytes | None]]) -> None:
        from confluent_kafka import Producer

        refused: list[Any] = []
        producer = Producer(
            {
                **self.settings().cluster.client(),
                "partitioner": "murmur2_random",
                # In order without idempotence, whose producer waits half a second for its id.
                "max.in.flight.requests.per.connection": 1,
                "linger.ms": 0,
                "log_level": 0,
            }
        )

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                refused.append(error)

        for key, value in records:
            producer.produce(topic, key=key, value=value, on_delivery=delivered)
            producer.poll(0)
        waiting = producer.flush(SECONDS_MAX)
        if refused or waiting:
            why = refused[0].str() if refused else f"the broker took no record within {SECONDS_MAX:.0f} s"
            raise SendError(f"{len(refused) or waiting} records for {topic} were not written: {why}")


@contextmanager
def embedded_platform(**settings: Any) -> Iterator[EmbeddedPlatform]:
    """
    Run a broker and a registry in a thread of this process for as long as the context lasts.

    Settings are those of `log_broker.embedded`: `topics`, `config`, and any setting of the broker as a keyword.
    """
    import log_broker
    from fluvial.http_doors import rules_of
    from fluvial.registry.logs.schemas_log import SchemasLog
    from fluvial.registry.model.registry import Registry
    from fluvial.registry.validator import RegistryValidator

    schemas = SchemasLog()
    registry = Registry(schemas, rules=lambda: rules_of(broker.node.config, broker.node.authorizer))
    with log_broker.embedded(validator=RegistryValidator(registry), **settings) as broker:
        schemas.attach(broker.node)
        serving = _Serving(broker, registry)
        try:
            yield EmbeddedPlatform(broker=broker, registry_url=serving.start(), registry=registry)
        finally:
            serving.stop()


class _Serving:
    """The registry's HTTP server, on the event loop of the broker's thread."""

    def __init__(self, broker: "EmbeddedBroker", registry: Any) -> None:
        self._node = broker.node
        self._loop = broker.node.loop
        self._registry = registry
        self._url: Future[str] = Future()
        self._stopping = asyncio.Event()
        self._served: Future[None] | None = None

    def start(self) -> str:
        self._served = asyncio.run_coroutine_threadsafe(self._serve(), self._loop)
        self._served.add_done_callback(self._ended)
        return self._url.result(SECONDS_MAX)

    def stop(self) -> None:
        """Return once the port is given back: the broker's thread closes its loop after that."""
        if self._served is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._served.result(SECONDS_MAX)

    async def _serve(self) -> None:
        from fluvial.http_doors import registry_security
        from fluvial.http_server import serve
        from fluvial.registry.service.app import create_app

        await self._registry.open()
        security = registry_security(self._node)
        app = create_app(self._registry, security=security)
        tls = None if security is None else security.server_tls
        scheme = "http" if tls is None else "https"
        server = asyncio.create_task(
            serve(app, HOST, 0, tls=tls, started=lambda port: self._url.set_result(f"{scheme}://{HOST}:{port}"))
        )
        asked = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({server, asked}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if server.done():
            await server
        server.cancel()
        await asyncio.wait({server})
        if security is not None:
            security.close()

    def _ended(self, served: "Future[None]") -> None:
        if not self._url.done():
            self._url.set_exception(served.exception() or SendError("the registry ended before it answered"))


def _key_of(event: Mapping[str, Any], key: Key) -> str | None:
    if key is None:
        return None
    if callable(key):
        return key(event)
    if key not in event:
        raise SendError(f"the event has no field {key} for its key; it has {', '.join(event)}")
    value = event[key]
    return None if value is None else str(value)


def _encoder(schema_id: int, text: str) -> Callable[[int, Mapping[str, Any]], bytes]:
    import fastavro
    from fastavro.schema import SchemaParseException, UnknownType
    from fastavro.validation import ValidationError, validate

    try:
        schema = fastavro.parse_schema(json.loads(text))
    except (ValueError, SchemaParseException, UnknownType) as error:
        raise SendError(
            f"schema {schema_id} is no Avro schema ({error!r}): send its records with a serializer of its format"
        ) from error
    prefix = b"\0" + schema_id.to_bytes(4, "big")

    def encode(number: int, event: Mapping[str, Any]) -> bytes:
        body = io.BytesIO()
        try:
            validate(event, schema)
            fastavro.schemaless_writer(body, schema, event, strict_allow_default=True)
        except ValidationError as error:
            why = "; ".join(str(each) for each in error.errors)
            raise SendError(f"event {number} does not fit schema {schema_id}: {why}") from error
        except (ValueError, TypeError, OverflowError) as error:
            raise SendError(f"event {number} does not fit schema {schema_id}: {error}") from error
        return prefix + body.getvalue()

    return encode
