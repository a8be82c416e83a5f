"""
What each turn of an event loop costs, in CPU of its thread, told through a page of memory that two processes share.

CPU and not time, because the machine may be busy with other things. The page is read by whoever started the process:
a loop that is stuck says nothing itself. A full garbage collection is counted by itself: it falls on whatever turn
comes, and its cost is of all that the process holds.
"""

import asyncio
import gc
import mmap
import os
import struct
import sys
import threading
import time
from pathlib import Path

TURN_SECONDS_MAX = 0.050  # on a machine that does `_work` in WORK_SECONDS
WORK_SECONDS = 0.0095
COLLECTION_SECONDS_MAX = 0.250
PAGE_BYTES = 4096
SAMPLE_SECONDS = 0.02
SAMPLED_FROM_SECONDS = 0.03  # a turn that has taken so much already is looked at: what is it doing
_TEXT_FROM = 1024
_NUMBER = struct.Struct("<d")
_OWN = ("log_broker", "fluvial", "kio")


def is_long(turn: float) -> bool:
    """Whether a turn of so many CPU seconds is out of bounds, on a machine as slow as this one is now."""
    return turn > TURN_SECONDS_MAX and turn > TURN_SECONDS_MAX * min(_work() for _ in range(3)) / WORK_SECONDS


def _work() -> float:
    """Return the CPU seconds of a piece of Python that is always the same."""
    began = time.thread_time()
    for _ in range(20):
        {str(number): [number, {"a": number}] for number in range(1000)}
    return time.thread_time() - began


class Meter:
    """The shared page: numbers, and a text that says where the longest turn was seen."""

    _THREAD, _TURNS, _BEGAN, _LONGEST, _INDEX, _COLLECTION = range(6)

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(PAGE_BYTES))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), PAGE_BYTES)
        self._collecting_since = 0.0
        self._collected = 0.0  # seconds of this turn that were a full collection

    def _get(self, place: int) -> float:
        value: float = _NUMBER.unpack_from(self._page, place * 8)[0]
        return value

    def _set(self, place: int, value: float) -> None:
        _NUMBER.pack_into(self._page, place * 8, value)

    # By the process whose loop it is.

    def watch_this_thread(self) -> None:
        """Take the calling thread for the loop's, and sample what it does while a turn is long."""
        self._set(self._THREAD, threading.get_native_id())
        gc.callbacks.append(self._collects)
        threading.Thread(target=self._sample, args=(threading.get_ident(),), daemon=True, name="sampler").start()

    def turn_begins(self) -> None:
        self._collected = 0.0
        self._set(self._BEGAN, time.thread_time())

    def turn_ends(self) -> None:
        began = self._get(self._BEGAN)
        self._set(self._BEGAN, -1.0)
        spent = time.thread_time() - began - self._collected
        self._set(self._TURNS, self._get(self._TURNS) + 1)
        if spent > self._get(self._LONGEST):
            self._set(self._LONGEST, spent)

    def _collects(self, phase: str, what: dict[str, int]) -> None:
        if what["generation"] < 2 or threading.get_native_id() != self._get(self._THREAD):
            return
        if phase == "start":
            self._collecting_since = time.thread_time()
            return
        seconds = time.thread_time() - self._collecting_since
        self._collected += seconds
        if seconds > self._get(self._COLLECTION):
            self._set(self._COLLECTION, seconds)

    def at(self, index: int) -> None:
        """Note which request is being handled."""
        self._set(self._INDEX, index)

    def _sample(self, thread: int) -> None:
        clock = time.pthread_getcpuclockid(thread)
        while True:
            time.sleep(SAMPLE_SECONDS)
            began = self._get(self._BEGAN)
            if began < 0 or time.clock_gettime(clock) - began < SAMPLED_FROM_SECONDS:
                continue
            frame = sys._current_frames().get(thread)
            lines = []
            while frame is not None:
                code = frame.f_code
                if any(f"/{own}/" in code.co_filename for own in _OWN):
                    path = "/".join(code.co_filename.split("/")[-2:])
                    lines.append(f"{path}:{frame.f_lineno} {code.co_name}")
                frame = frame.f_back
            text = " < ".join(lines[:7]).encode()[: PAGE_BYTES - _TEXT_FROM - 2]
            self._page[_TEXT_FROM : _TEXT_FROM + len(text) + 1] = text + b"\0"

    # By whoever watches it.

    def reset(self) -> None:
        self._set(self._LONGEST, 0.0)
        self._set(self._COLLECTION, 0.0)
        self._page[_TEXT_FROM : _TEXT_FROM + 1] = b"\0"

    @property
    def index(self) -> int:
        return int(self._get(self._INDEX))

    @property
    def turns(self) -> int:
        return int(self._get(self._TURNS))

    @property
    def longest(self) -> float:
        """CPU seconds of the longest turn that has ended since `reset`, full collections left out."""
        return self._get(self._LONGEST)

    @property
    def longest_collection(self) -> float:
        """CPU seconds of the longest full garbage collection in the loop's thread since `reset`."""
        return self._get(self._COLLECTION)

    @property
    def where(self) -> str:
        """The innermost frames of our own code in which a long turn was seen last."""
        text = bytes(self._page[_TEXT_FROM:])
        return text[: text.index(b"\0")].decode(errors="replace")

    def current(self, pid: int) -> float:
        """CPU seconds of the turn that is running now, 0 between turns and for a process that has ended."""
        began = self._get(self._BEGAN)
        if began < 0 or not self._get(self._THREAD):
            return 0.0
        try:
            with open(f"/proc/{pid}/task/{int(self._get(self._THREAD))}/schedstat") as file:
                return max(int(file.read().split()[0]) / 1e9 - began, 0.0)
        except OSError:
            return 0.0


class MeteredLoop(asyncio.SelectorEventLoop):
    """Python's own event loop, each turn measured. What waits in it for sockets takes no CPU."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self.meter = meter
        self.servers: list[object] = []  # the protocol factories of what listens here, first the broker's

    def _run_once(self) -> None:
        self.meter.turn_begins()
        super()._run_once()  # type: ignore[misc]
        self.meter.turn_ends()

    async def create_server(self, protocol_factory, *args, **more):  # type: ignore[no-untyped-def,override]
        self.servers.append(protocol_factory)
        return await super().create_server(protocol_factory, *args, **more)


def limit_memory(address_space: int) -> None:
    """Have this process fail rather than take all the memory of the machine."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    os.environ["MALLOC_ARENA_MAX"] = "2"
