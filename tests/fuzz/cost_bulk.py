"""
Very many requests through decoders and handlers, without sockets: what each turn of the loop costs, to the microsecond.

    python tests/fuzz/cost_bulk.py      reads {"seed", "first", "count", "folder"} a line, says what is found

Each block of requests is a process of its own, forked from one that has everything imported, with a node of its own, so
that an index repeats. Most requests are those of `fuzz_requests`, broken in their bytes; some are those of the search.
"""

import asyncio
import contextlib
import gc
import json
import logging
import os
import sys
from pathlib import Path
from random import Random
from typing import Any, TextIO, cast

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "platform")]

from cost_corpus import LAST, World, make_world
from cost_meter import COLLECTION_SECONDS_MAX, Meter, MeteredLoop, is_long, limit_memory
from cost_mutations import NO_REQUEST, REQUEST_BYTES_MAX, frames_of, random_case
from cost_node import ADDRESS_SPACE, BUDGET_BYTES, MEMORY_SLACK, SETTINGS, numbers_of
from fuzz_node import Wire, framed
from fuzz_requests import RequestFuzzer

from log_broker.records import build_batch
from log_broker.wire.apis import APIS, ApiKey
from log_broker.wire.control import description_of
from tests.free_ports import free_ports

SEARCHED_SHARE = 0.05  # of the requests come from the search for cost
TURNS_MAX = 8  # of one request: what waits longer waits
PROBE_EVERY = 100
REQUESTS_A_CONNECTION = 20
BLOCK = 10_000
NUMBERS_MAX = {"quorum epoch": 1_000, "leader epoch": 10_000, "partition epoch": 20_000, "brokers": 10}
STEP = 500  # requests between two words about how far it is


class Pipe(asyncio.Transport):
    """Stands for a socket: what is written to it is counted, what is read comes from the fuzzer."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__({"peername": ("127.0.0.1", 9)})
        self._loop = loop
        self._protocol = protocol
        self.is_reading = True
        self.is_gone = False
        self.written = bytearray()
        protocol.connection_made(self)

    def feed(self, data: memoryview) -> None:
        """Hand over what one read of a socket would bring."""
        if self.is_gone or not self.is_reading:
            return
        buffer = self._protocol.get_buffer(-1)
        size = min(len(buffer), len(data))  # type: ignore[arg-type]
        buffer[:size] = data[:size]  # type: ignore[index]
        self._protocol.buffer_updated(size)
        if size < len(data):
            self._loop.call_soon(self.feed, data[size:])

    def write(self, data: Any) -> None:
        self.written += data

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing stays in it."""

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def is_closing(self) -> bool:
        return self.is_gone

    def close(self) -> None:
        if not self.is_gone:
            self.is_gone = True
            self._loop.call_soon(self._protocol.connection_lost, None)

    abort = close


class Failures(logging.Handler):
    """The exceptions that the broker logged: a request may be refused, but never surprise it."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


class Block:
    """A node, and the requests that are fed to it one by one."""

    def __init__(self, seed: int, folder: Path, told: TextIO) -> None:
        self._seed = seed
        self._folder = folder
        self._told = told
        self.meter = Meter(folder / "meter")
        self.meter.watch_this_thread()
        self.loop = MeteredLoop(self.meter)
        asyncio.set_event_loop(self.loop)
        self._fuzzer = RequestFuzzer(seed)
        self._failures = Failures()
        logging.getLogger().addHandler(self._failures)
        self._probed = 0
        self.world = World()

    def start(self) -> None:
        from fluvial.node import NodeOptions, run
        from log_broker.config.broker import BrokerConfig

        (port,) = free_ports(1)
        config = BrokerConfig(data_dir=self._folder / "data", port=port).with_settings(
            {name: str(value) for name, value in SETTINGS.items()}
        )
        ready = asyncio.Event()
        self._running = self.loop.create_task(run(NodeOptions(broker=config, registry_port=None), ready.set))
        self.loop.run_until_complete(ready.wait())
        self._port = port
        self.world = self.loop.run_until_complete(make_world(port))
        self._probe = self.loop.run_until_complete(Wire.open(port))
        self._failures.found.clear()
        gc.collect()
        gc.freeze()

    def pipe(self) -> Pipe:
        protocol = cast(asyncio.BufferedProtocol, self.loop.servers[0]())  # type: ignore[operator]
        return Pipe(self.loop, protocol)

    def turns(self) -> None:
        """Have the loop do what is to be done now."""
        for _ in range(TURNS_MAX):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
            if not self.loop._ready:  # type: ignore[attr-defined]
                return

    def request(self, index: int) -> tuple[str, bytes]:
        """Return what the request of an index is and what is sent."""
        rng = Random(self._seed << 48 | index)
        if rng.random() < SEARCHED_SHARE:
            case = random_case(rng)._replace(connections=1)
            if case.key not in LAST:
                with contextlib.suppress(*NO_REQUEST):
                    (frame,) = frames_of(self.world, case)
                    if len(frame) <= REQUEST_BYTES_MAX:
                        return str(case), frame
        return "bytes", framed(self._fuzzer.request(index))

    def run(self, indexes: range) -> None:
        pipe = self.pipe()
        first_memory = _resident()
        for index in indexes:
            what, data = self.request(index)
            self.meter.at(index)
            self.meter.reset()
            if pipe.is_gone or index % REQUESTS_A_CONNECTION == 0:
                pipe.close()
                pipe = self.pipe()
            self.loop.call_soon(pipe.feed, memoryview(data))
            self.turns()
            pipe.written.clear()
            longest = self.meter.longest
            if is_long(longest):
                self.tell(index, what, data, "turn", f"a turn of {longest * 1000:.0f} ms ({self.meter.where})", longest)
            if self.meter.longest_collection > COLLECTION_SECONDS_MAX:
                collected = f"a full garbage collection of {self.meter.longest_collection * 1000:.0f} ms"
                self.tell(index, what, data, "collection", collected)
            for failure in self._failures.found:
                self.tell(index, what, data, "failure", failure)
            self._failures.found.clear()
            if index % PROBE_EVERY == PROBE_EVERY - 1:
                self._check(index, what, data, first_memory)
            if index % STEP == 0:
                self._say({"at": index})

    def _check(self, index: int, what: str, data: bytes, first_memory: int) -> None:
        try:
            self.loop.run_until_complete(asyncio.wait_for(self._ask(), 30))
        except (TimeoutError, OSError, asyncio.IncompleteReadError, AssertionError) as error:
            self.tell(index, what, data, "answer", f"another client's probe, after {PROBE_EVERY} requests: {error!r}")
            self._say({"ended": index})
            os._exit(0)
        numbers = numbers_of(self.loop.servers[0]())  # type: ignore[operator]
        for name, most in NUMBERS_MAX.items():
            if numbers[name] > most:
                self.tell(index, what, data, name, f"{name} is {numbers[name]}, after {PROBE_EVERY} requests")
                self._say({"ended": index})
                os._exit(0)
        grown = _resident() - first_memory
        if grown > 2 * (BUDGET_BYTES + MEMORY_SLACK):
            self.tell(index, what, data, "memory", f"memory grew by {grown >> 20} MiB in this block")
            self._say({"ended": index})
            os._exit(0)

    async def _ask(self) -> None:
        batch = bytes(build_batch([(self.world.now_ms, b"k", b"%d" % self._probed, ())]))
        asked: dict[str, Any] = {
            "transactional_id": None,
            "acks": -1,
            "timeout": 30_000,
            "topic_data": [{"name": "good", "partition_data": [{"index": 0, "records": batch}]}],
        }
        answer = await self._probe.ask(ApiKey.PRODUCE, 9, asked)
        found = answer.responses[0].partition_responses[0]
        assert (found.error_code, found.base_offset) == (0, self._probed), found
        self._probed += 1

    def tell(self, index: int, what: str, data: bytes, kind: str, said: str, cost: float = 0.0) -> None:
        head = data[:64].hex() if what == "bytes" else ""
        self._say(
            {
                "found": index,
                "what": f"{what} {head}".strip(),
                "bytes": len(data),
                "kind": kind,
                "said": said,
                "cost": cost,
            }
        )

    def _say(self, line: dict[str, Any]) -> None:
        print(json.dumps(line), file=self._told, flush=True)


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _import_everything() -> None:
    """What is imported when it is first used would be taken for the cost of a request."""
    from importlib import import_module

    import pyarrow.compute  # noqa: F401

    import fluvial.node  # noqa: F401
    from log_broker.wire.messages import codec_of

    for api in APIS.values():
        import_module(f"log_broker.server.handlers.{api.handler}")
        for version in range(api.version_min, api.version_max + 1):
            for direction in ("request", "response"):
                with contextlib.suppress(ModuleNotFoundError):
                    codec_of(description_of(api.key, version, direction))


def _block(order: dict[str, Any], told: TextIO) -> None:
    limit_memory(ADDRESS_SPACE)
    block = Block(order["seed"], Path(order["folder"]), told)
    block.start()
    print(json.dumps({"started": os.getpid()}), file=told, flush=True)
    block.run(range(order["first"], order["first"] + order["count"]))
    print(json.dumps({"ended": order["first"] + order["count"]}), file=told, flush=True)
    os._exit(0)


def main() -> None:
    told = os.fdopen(os.dup(1), "w")
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    logging.basicConfig(level=logging.ERROR)
    _import_everything()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                _block(json.loads(line), told)
            except BaseException as error:
                print(json.dumps({"broken": repr(error)}), file=told, flush=True)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"done": pid, "status": status}), file=told, flush=True)


if __name__ == "__main__":
    main()
