"""A consumer in a process of its own, to be killed: it commits each record and says so on a line of its own."""

import json
import sys
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, TopicPartition


def say(what: str) -> Callable[[Consumer, list[TopicPartition]], None]:
    return lambda _, places: print(what, *(place.partition for place in places), flush=True)


def main(settings: str, topic: str) -> None:
    consumer = Consumer({"auto.offset.reset": "earliest", "enable.auto.commit": False, **json.loads(settings)})
    consumer.subscribe([topic], on_assign=say("assigned"), on_revoke=say("revoked"), on_lost=say("revoked"))
    while True:
        message = consumer.poll(0.1)
        if message is None or message.error() is not None:
            continue
        try:
            consumer.commit(message, asynchronous=False)
        except KafkaException:
            # The broker is away or the partition is another's now: whoever has it reads the record again.
            for place in consumer.assignment():
                if (place.topic, place.partition) == (message.topic(), message.partition()):
                    consumer.seek(TopicPartition(place.topic, place.partition, message.offset()))
            continue
        print("done", message.partition(), message.offset(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
