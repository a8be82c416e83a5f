"""
Many clients in one process: `python -m tests.bench.scale.clients JSON`.

Each client is a connection that sends a request, waits for its answer, thinks, and sends the next; without a time to
think it sends at once. Times to think are drawn from an exponential distribution, so that clients do not march in
step. The requests are bytes made beforehand, so that a client costs a fraction of what its requests cost a broker.
Says `ready`, waits for a line, and answers with a line of JSON.
"""

import json
import random
import select
import sys
import time
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

from tests.bench.broker.raw_requests import Load, Pipe, touch

SEED = 20


class Share(NamedTuple):
    """Which clients of a load one process plays."""

    load: Load
    number: int
    processes: int
    think_seconds: float


def play(share: Share, pipes: list[Pipe], poll: select.epoll) -> float:
    """Run the clients until the time is over, then take the last answers; return the seconds that took."""
    load, think = share.load, share.think_seconds
    dice = random.Random(SEED + share.number)
    clock = time.perf_counter
    by_fd = {pipe.socket.fileno(): pipe for pipe in pipes}
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    began = clock()
    deadline = began + load.seconds
    # When each client that thinks will have thought; all begin within one time to think.
    due = [(began + think * dice.random(), fd) for fd in by_fd]
    heapify(due)
    while (now := clock()) < deadline:
        while due and due[0][0] <= now:
            by_fd[heappop(due)[1]].send(load.in_flight, clock())
        answered = poll.poll(0)
        if not answered:
            # epoll waits for whole milliseconds, which would gather the clients of each into a crowd; select does not.
            until = min(due[0][0], deadline) if due else deadline
            select.select([poll], (), (), max(until - clock(), 0))
            continue
        for fd, _ in answered:
            pipe = by_fd[fd]
            count = pipe.receive()
            if not think:
                pipe.send(count, clock())
            elif not pipe.unanswered:
                heappush(due, (clock() + dice.expovariate(1 / think), fd))
    for pipe in pipes:
        while pipe.unanswered:
            pipe.receive()
    return clock() - began


def main() -> None:
    words: dict[str, Any] = json.loads(sys.argv[1])
    load = Load(**words.pop("load"))
    share = Share(load=load, **words)
    touch(load)
    with select.epoll() as poll:  # before the connections, as select takes no file with a number over 1,023
        pipes = [Pipe(load, number) for number in range(share.number, load.connections, share.processes)]
        print("ready", flush=True)
        if not sys.stdin.readline():
            return  # whoever asked for it has gone
        before = time.process_time()
        seconds = play(share, pipes, poll)
        spent = time.process_time() - before
    latencies = sorted(round(value * 1e6) for pipe in pipes for value in pipe.latencies)
    touched = load.partitions * load.records
    answer = {
        "acknowledged": len(latencies) * load.records + touched,
        "seconds": seconds,
        "cpu_seconds": spent,
        "latencies_us": latencies,
    }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
