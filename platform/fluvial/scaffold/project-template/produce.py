"""
Send some orders, as the shop's own service would: any Kafka client with an Avro serializer does.

    python produce.py [HOW_MANY]

What the contract asks for beyond the fields below is made up, so that a field you add to it is filled as well.
"""

import random
import sys
import uuid
from datetime import UTC, datetime

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from fluvial.config import load_settings
from fluvial.registry.contracts import load_contracts, register_all
from fluvial.testing import events

TOPIC = "orders"
CUSTOMERS = ["ada", "bob", "cleo", "dan", "eve"]
# The broker refuses a record that is not framed with a registered schema.
CONFIG = {"fluvial.value.schema.validation": "id"}


def main(how_many: int) -> None:
    settings = load_settings()
    contracts = load_contracts("schemas")
    with settings.registry.client() as registry:
        register_all(registry, contracts)
    admin = AdminClient(settings.cluster.client())
    if TOPIC not in admin.list_topics(timeout=10).topics:
        admin.create_topics([NewTopic(TOPIC, num_partitions=3, config=CONFIG)])[TOPIC].result()

    contract = next(each for each in contracts if each.subject == f"{TOPIC}-value")
    serialize = AvroSerializer(
        SchemaRegistryClient(settings.registry.confluent()), contract.text, conf={"auto.register.schemas": False}
    )
    orders = events(
        contract,
        how_many,
        order_id=lambda _: str(uuid.uuid4()),
        customer=lambda _: random.choice(CUSTOMERS),
        amount=lambda _: round(random.uniform(5, 100), 2),
        ordered_at=lambda _: datetime.now(UTC),
    )
    producer = Producer(settings.cluster.client(**{"enable.idempotence": True}))
    for order in orders:
        value = serialize(order, SerializationContext(TOPIC, MessageField.VALUE))
        producer.produce(TOPIC, key=order["customer"], value=value)
        producer.poll(0)
    producer.flush()
    print(f"{how_many} orders sent to {TOPIC}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
