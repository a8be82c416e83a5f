"""
Batches of producers whose admission takes long, and is run in a thread, or waits for what a validator has yet to learn.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from log_broker.core.partition.admission import Admitted
from log_broker.core.partition.protocol import AppendResult, AskValidator, CheckAside, Effect, Reply
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.batch import read_header
from log_broker.records.contracts import Fault
from log_broker.server.partitions.replica import Replica

_log = logging.getLogger(__name__)

Done = Callable[[AppendResult], None]
Run = Callable[[Iterable[Effect]], None]


class LongChecks:
    """Checks batches, and keeps what comes meanwhile in its order."""

    def __init__(self, replica: Replica, run: Run) -> None:
        self.queued: deque[tuple[memoryview, int, Done]] | None = (
            None  # (batch, acks, done), while a check is under way
        )
        self._replica = replica
        self._run = run
        self._under_way = 0

    def check(self, asked: CheckAside) -> None:
        """Check a batch in a thread, then append it."""
        self._under_way += 1
        if self.queued is None:
            self.queued = deque()
        self._replica.aside(asked.admission.run).add_done_callback(partial(self._checked, asked))

    def learn(self, asked: AskValidator) -> None:
        """Have the validator learn what is new, then append the batch."""
        learn = self._replica.core.appends.learn
        assert learn is not None, "only who can learn is asked to"
        learn(partial(self._look_again, asked))

    async def faults_of(self, batch: memoryview) -> Sequence[Fault]:
        """Say which records of a batch break the topic's contracts, as these are known here by now."""
        replica = self._replica
        admission = replica.core.appends.admission(batch, read_header(batch), replica.clock_ms())
        faults: Sequence[Fault] = await replica.aside(admission.faults)
        return faults

    def _look_again(self, asked: AskValidator, is_known: bool) -> None:
        """Append a batch that the validator would have refused by what it knew, or refuse it now."""
        batch, acks, token = asked
        if is_known or self._replica.is_closed:
            self._append(batch, acks, token, has_learned=True)
        else:
            message = "what is valid here cannot be looked up now"
            self._run((Reply(token, AppendResult(ErrorCode.REQUEST_TIMED_OUT, message=message)),))

    def _checked(self, asked: CheckAside, checked: "asyncio.Future[Admitted]") -> None:
        """Append a batch whose records have been checked, or refuse it, and then what came after it."""
        self._under_way -= 1
        replica = self._replica
        outcome: Admitted | BrokerError
        try:
            outcome = checked.result()
        except BrokerError as error:
            outcome = error
        except asyncio.CancelledError:
            outcome = BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker is stopping")
        except Exception as error:
            name = f"{replica.topic}-{replica.partition}"
            _log.error("a fault of our own in checking a batch for %s", name, exc_info=error)
            outcome = BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "the broker failed; see its log")
        batch, acks, token, _, has_learned = asked
        self._append(batch, acks, token, has_learned=has_learned, outcome=outcome)
        queued = self.queued
        while queued and not self._under_way:
            self._append(*queued.popleft())
        if not self._under_way:
            self.queued = None

    def _append(
        self,
        batch: memoryview,
        acks: int,
        token: Done,
        *,
        has_learned: bool = False,
        outcome: Admitted | BrokerError | None = None,
    ) -> None:
        replica = self._replica
        if replica.is_closed:
            self._run((Reply(token, AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER)),))
            return
        appends, now_ms = replica.core.appends, replica.clock_ms()
        self._run(appends.append(batch, acks, token, now_ms, has_learned=has_learned, outcome=outcome))
