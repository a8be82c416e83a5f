"""Random batches with random bad records, repeated and interrupted at random, against what must come of them."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quarantine_node import NoBad, batch_of, stored, told

from log_broker.config.broker import BrokerConfig
from log_broker.core.cluster.controller import CreateTopic
from log_broker.core.partition.protocol import AppendResult
from log_broker.errors import ErrorCode
from log_broker.records import Codec
from log_broker.records.batch import TRANSACTIONAL
from log_broker.records.control import EndMarker
from log_broker.server.coordinators.markers import Ending, write_marker
from log_broker.server.node import Node

EXAMPLES = int(os.environ.get("FLUVIAL_QUARANTINE_EXAMPLES", "12"))
NONE = ErrorCode.NONE
PRODUCERS = 3  # without idempotence, with it, in transactions


@dataclass
class Sent:
    """One batch: which of its records are bad, how it is sent and what happens to it."""

    producer: int
    bad: Sequence[bool]
    codec: Codec
    dies_between: bool
    repeats: int


batches = st.builds(
    Sent,
    producer=st.integers(0, PRODUCERS - 1),
    bad=st.lists(st.booleans(), min_size=1, max_size=6),
    codec=st.sampled_from(list(Codec)),
    dies_between=st.booleans(),
    repeats=st.integers(0, 2),
)
steps = st.lists(st.one_of(batches, st.sampled_from(["restart", "commit", "abort"])), min_size=1, max_size=12)


@dataclass
class Model:
    """What must be in the topic and in its quarantine: (offset or offset-to-be, value)."""

    end: int = 0
    good: list[tuple[int, bytes]] = field(default_factory=list)
    bad: list[tuple[int, bytes]] = field(default_factory=list)
    open_good: list[tuple[int, bytes]] = field(default_factory=list)
    open_bad: list[tuple[int, bytes]] = field(default_factory=list)
    in_transaction: bool = False
    sequences: list[int] = field(default_factory=lambda: [-1, 0, 0])
    epoch: int = 0

    def take(self, sent: Sent, values: Sequence[bytes]) -> None:
        good, bad = (self.open_good, self.open_bad) if sent.producer == 2 else (self.good, self.bad)
        for at, (value, is_bad) in enumerate(zip(values, sent.bad, strict=True)):
            (bad if is_bad else good).append((self.end + at, value))
        self.end += len(values)

    def finish(self, *, committed: bool) -> None:
        if committed:
            self.good += self.open_good
            self.bad += self.open_bad
        self.open_good, self.open_bad, self.in_transaction = [], [], False
        self.end += 1  # the marker


class Run:
    """A node, its topic and the model of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = Model()
        self.node: Node
        self.number = 0

    async def start(self) -> None:
        self.node = Node(BrokerConfig(data_dir=self.folder, port=0), validator=NoBad())
        await self.node.start()
        overrides = {"fluvial.value.schema.validation": "payload", "fluvial.schema.violation": "quarantine"}
        await self.node.ensure_topic(CreateTopic(name="t", topic_id="ab" * 16, partitions=1, overrides=overrides))

    async def step(self, step: Sent | str) -> None:
        match step:
            case "restart":
                await self.node.stop()
                await self.start()
            case "commit" | "abort":
                if self.model.in_transaction:
                    await self._end(committed=step == "commit")
            case Sent():
                await self._send(step)

    async def _send(self, sent: Sent) -> None:
        model = self.model
        values = [b"%s%d" % (b"bad" if is_bad else b"good", self.number + at) for at, is_bad in enumerate(sent.bad)]
        self.number += len(values)
        sequence = model.sequences[sent.producer]
        producer = (-1, -1, -1) if sent.producer == 0 else (sent.producer, model.epoch, sequence)
        attributes = TRANSACTIONAL if sent.producer == 2 else 0
        batch = batch_of(*values, producer=producer, codec=sent.codec, attributes=attributes)
        if sent.producer == 2:
            model.in_transaction = True
        if sent.producer and sent.dies_between:
            # The log has it and the quarantine has not: the node dies, and the producer hears nothing.
            result = await self._append(batch, sent, aside=False)
            assert (result.error, result.base_offset) == (NONE, model.end)
            await self.node.stop()
            await self.start()
        repeats = sent.repeats if sent.producer else 0
        for _ in range(1 + repeats):
            result = await self._append(batch, sent, aside=True)
            assert (result.error, result.base_offset) == (NONE, model.end), result
        model.take(sent, values)
        if sent.producer:
            model.sequences[sent.producer] += len(values)

    async def _append(self, batch: bytes, sent: Sent, *, aside: bool) -> AppendResult:
        """Append as the handler does, the coordinator's consent to the transaction given."""
        answer: asyncio.Future[AppendResult] = self.node.loop.create_future()
        runtime = self.node.logs.get("t", 0)
        if sent.producer == 2:
            await self._allow()
        if aside:
            self.node.quarantine.append(runtime, memoryview(bytearray(batch)), acks=-1, done=answer.set_result)
        else:
            runtime.append(batch, acks=-1, done=answer.set_result)
        return await asyncio.wait_for(answer, 60)

    async def _allow(self) -> None:
        for topic in ("t", "t.quarantine"):
            if topic == "t.quarantine":
                await self.node.quarantine._ensure("t", topic)
            transactions = self.node.logs.get(topic, 0).transactions
            if not transactions.is_open(2, self.model.epoch):
                transactions.expect(2, self.model.epoch, 2**30)
                transactions.answered(2)
                transactions.allow(2, self.model.epoch)

    async def _end(self, *, committed: bool) -> None:
        ending = Ending((2, self.model.epoch), EndMarker(committed, 0))
        for topic in ("t", "t.quarantine"):
            assert await write_marker(self.node, (topic, 0), ending) is NONE
        self.model.finish(committed=committed)

    def check(self) -> None:
        model = self.model
        found = [(record.offset, record.value) for record in stored(self.node, "t", committed=True)]
        assert sorted(found) == found
        assert found == sorted(model.good)
        aside = [(int(told(each)["offset"]), each.value) for each in stored(self.node, "t.quarantine", committed=True)]
        assert aside == sorted(model.bad), "each once, in order"
        assert self.node.logs.get("t", 0).high_watermark == model.end


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(story=steps)
def test_good_ones_enter_in_order_and_bad_ones_go_aside_once(story: list[Sent | str]) -> None:
    async def tell() -> None:
        with TemporaryDirectory() as folder:
            run = Run(Path(folder))
            await run.start()
            try:
                for step in story:
                    await run.step(step)
                if run.model.in_transaction:
                    await run.step("commit")
                await run.step("restart")
                run.check()
            finally:
                await run.node.stop()

    asyncio.run(tell())
