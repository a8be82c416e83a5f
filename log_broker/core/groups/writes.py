"""The writes of one group that are under way, each with what follows from its end."""

from collections.abc import Callable

from log_broker.core.groups.protocol import Effect, GroupRecord, Persist, Persisted
from log_broker.errors import ErrorCode

# Called with the write's error and the time; returns what is to be done then.
Outcome = Callable[[ErrorCode, int], list[Effect]]


def no_outcome(error: ErrorCode, now_ms: int) -> list[Effect]:
    """Nothing depends on these records."""
    return []


class PendingWrites:
    """By the number of a Persist, what is to be done when it is reported with Persisted."""

    def __init__(self) -> None:
        self._outcomes: dict[int, Outcome] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._outcomes)

    def persist(
        self,
        records: tuple[GroupRecord, ...],
        outcome: Outcome = no_outcome,
        *,
        producer: tuple[int, int] | None = None,
        is_step: bool = False,
    ) -> Persist:
        """Return the effect that writes the records; its fields are those of `Persist`."""
        self._count += 1
        self._outcomes[self._count] = outcome
        return Persist(self._count, records, producer, is_step)

    def persisted(self, event: Persisted, now_ms: int) -> list[Effect]:
        return self._outcomes.pop(event.number)(event.error, now_ms)
