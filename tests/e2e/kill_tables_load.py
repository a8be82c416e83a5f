"""Payments that are sent for as long as tables are killed."""

import io
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import fastavro
from confluent_kafka import KafkaError, Producer

from fluvial.config import Settings

ACCOUNTS = 400
RECORDS_A_SECOND = 100
FLUSH_SECONDS_MAX = 240.0


class Load:
    """
    Sends payments to topics for as long as it is let; some keys are ended by tombstones.

    A payment happened just now, but for some that come so late that windows are over.
    """

    def __init__(self, settings: Settings, topics: Sequence[str], seed: int) -> None:
        self.delivered: Counter[str] = Counter()
        self.failures: list[str] = []
        self._topics = topics
        self._dice = random.Random(seed + 1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="payments")
        with settings.registry.client() as registry:
            latest = [registry.latest(f"{topic}-value") for topic in topics]
        self._headers = {topic: b"\0" + each.id.to_bytes(4, "big") for topic, each in zip(topics, latest, strict=True)}
        self._schema = fastavro.parse_schema(json.loads(latest[0].schema))
        self._producer = Producer(
            {
                "bootstrap.servers": settings.bootstrap_servers,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "linger.ms": 20,
                "log_level": 0,
            }
        )

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_details: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Return once all that was sent is delivered."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            for _ in range(RECORDS_A_SECOND // 10):
                number += 1
                self._send(number)
            self._producer.poll(0)
            self._stop.wait(0.1)
        if self._producer.flush(FLUSH_SECONDS_MAX):
            self.failures.append("payments were not delivered")

    def _send(self, number: int) -> None:
        topic = self._dice.choice(self._topics)
        holder = f"account {self._dice.randrange(ACCOUNTS)}"
        value = None
        if self._dice.random() > 0.02:
            body = io.BytesIO()
            fastavro.schemaless_writer(body, self._schema, self._payment(number, holder))
            value = self._headers[topic] + body.getvalue()
        try:
            self._producer.produce(topic, key=holder, value=value, on_delivery=self._told)
        except BufferError:
            self._producer.poll(0.5)

    def _payment(self, number: int, holder: str) -> dict[str, Any]:
        ago = self._dice.random() * (120.0 if self._dice.random() < 0.02 else 3.0)
        return {
            "number": number,
            "holder": holder,
            "amount": None if self._dice.random() < 0.1 else self._dice.randrange(1000),
            "city": self._dice.choice(["Oslo", "Łódź", "Lima", None]),
            "at": int((time.time() - ago) * 1000),
        }

    def _told(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.delivered[message.topic()] += 1
        else:
            self.failures.append(error.str())
