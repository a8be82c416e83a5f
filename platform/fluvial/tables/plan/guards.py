"""
Guards: expressions in a plan that stop its job at a record which the plan does not provide for, before it commits.

A metric of the job (an observation, an accumulator) is complete when the job has ended, and then Delta has committed;
to count such records first would read every batch twice. So a guard raises an error, and this module alone plants its
text and reads it in what Spark makes of it (`raise_error`, condition USER_RAISED_EXCEPTION). Through Spark Connect the
text is all that arrives.
"""

import json
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from fluvial.delta.errors import TableError
from fluvial.delta.failures import texts_of
from fluvial.spark.avro import Contract
from fluvial.tables.plan.reducer_worker import MARK


class Guard(StrEnum):
    """
    What a record is that stops a job.
    """

    UNDECODABLE = "undecodable record"
    TOMBSTONE = "tombstone"
    KEYLESS = "no key"
    BINARY_KEY = "a key that is no text"


_RAISED = re.compile(
    rf"\[USER_RAISED_EXCEPTION\] fluvial-guard: ({'|'.join(Guard)})(?: at (\S+)-(\d+), offset (\d+))? SQLSTATE"
)
_REDUCER = re.compile(re.escape(MARK) + r"(\{.*\})")


def unless(condition: str, guard: Guard) -> str:
    """
    The SQL condition that is true of every row, and stops the job at one for which `condition` holds.

    Only where the key is what is wrong is the record's place told; otherwise the plan does without these columns.
    """
    told = f"'fluvial-guard: {guard}'"
    if guard in {Guard.KEYLESS, Guard.BINARY_KEY}:
        told = f"concat({told}, ' at ', _topic, '-', _partition, ', offset ', _offset)"
    return f"CASE WHEN {condition} THEN CAST(raise_error({told}) AS BOOLEAN) ELSE true END"


def raised(error: BaseException) -> tuple[Guard, tuple[str, int, int] | None] | None:
    """
    The guard that made a job fail, with the topic, partition and offset where it tells; None for any other failure.
    """
    found = _RAISED.search(texts_of(error))
    if found is None:
        return None
    return Guard(found[1]), (found[2], int(found[3]), int(found[4])) if found[2] else None


def reducer_failure(error: BaseException) -> dict[str, Any] | None:
    """
    What a reducer's worker says of the entity at which a job failed: `key`, `first`, `last`, `what`.
    """
    found = _REDUCER.search(texts_of(error))
    return None if found is None else json.loads(found[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Care:
    """
    What a batch is known to hold, and so must be planned for.

    `takes_keyless` says that records without the contract's key, and those with a key that is no text, may be put
    aside; else they stop the job.
    """

    undecodable: bool = False
    tombstones: bool = False
    keyless: bool = False
    binary_keys: bool = False
    takes_keyless: bool = False

    def after(self, error: BaseException) -> "Care | None":
        """
        The care that the guard behind a failed job asks for; None for another failure, and for a guard that this has.
        """
        match raised(error):
            case (Guard.UNDECODABLE, _) if not self.undecodable:
                return replace(self, undecodable=True)
            case (Guard.TOMBSTONE, _) if not self.tombstones:
                return replace(self, tombstones=True)
            case (Guard.KEYLESS, _) if self.takes_keyless and not self.keyless:
                return replace(self, keyless=True)
            case (Guard.BINARY_KEY, _) if self.takes_keyless and not self.binary_keys:
                return replace(self, binary_keys=True)
        return None

    def key_beyond(self, other: "Care") -> Guard | None:
        """
        The guard of keys that this has seen to and `other`, of which it was made, has not.
        """
        if self.keyless and not other.keyless:
            return Guard.KEYLESS
        return Guard.BINARY_KEY if self.binary_keys and not other.binary_keys else None


EVERYTHING = Care(undecodable=True, tombstones=True, keyless=True, binary_keys=True)
"""The care of a plan without guards, which takes any record."""


class KeylessError(TableError):
    """
    A record has no key, and the contract of its topic says that the key names an entity; or its key is no UTF-8 text,
    as the key column has it. Nothing was committed.
    """

    @classmethod
    def from_cause(cls, error: BaseException, table: str, contract: Contract) -> "KeylessError | None":
        """
        The record that made a job fail; None when it was something else.
        """
        match raised(error):
            case (Guard.KEYLESS, (topic, partition, offset)):
                return cls(
                    f"{table}: the record of {topic}-{partition} at offset {offset} has no key, and by "
                    f'{contract.subject} the key is {contract.key_field} (its "fluvial.key"): nothing of the batch was '
                    'committed; have its producer send the key, and declare the table with keyless="quarantine" to go '
                    f"on without the records that have none, or leave out this one: `fluvial run {table} --skip "
                    f"{topic}:{partition}={offset}`"
                )
            case (Guard.BINARY_KEY, (topic, partition, offset)):
                return cls(
                    f"{table}: the key of the record of {topic}-{partition} at offset {offset} is no UTF-8 text, which "
                    "the key column holds: nothing of the batch was committed; have its producer send text, and "
                    'declare the table with keyless="quarantine" to go on without such records, or leave out this one: '
                    f"`fluvial run {table} --skip {topic}:{partition}={offset}`"
                )
        return None
