"""
The records of a batch held against what their topic's contracts ask.

`all_pass` is the quick look at a whole batch, with everything that is usual in line; whatever is not usual it leaves to
`faults_of`, which takes its time and says what is wrong.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from log_broker.interfaces import Cause, RecordCheck, Skip, Violation
from log_broker.records.compiled import walk
from log_broker.records.record import Span
from log_broker.records.varint import read_uvarint

FRAME_BYTES = 5  # schema framing: one zero byte and a four-byte schema id
_DELTA_MAX = 2**63 - 1

Accepted = Mapping[bytes, Skip | None]


class Fault(NamedTuple):
    """One record of a batch that may not enter. `part` is key or value where that breaks its contract."""

    at: int  # its place in the batch
    reason: str
    part: str = ""
    field: str = ""
    cause: Cause = Cause.PAYLOAD

    @classmethod
    def of(cls, at: int, part: str, violation: Violation) -> "Fault":
        return cls(at, violation.reason, part, violation.field, violation.cause)


class SideChecks(NamedTuple):
    """What holds for the keys and for the values of a topic; None where nothing does."""

    key: RecordCheck | None
    value: RecordCheck | None

    def keyless(self) -> Violation | None:
        """Why the contract of the values lets no record without a key enter, None where it does."""
        return None if self.value is None else self.value.keyless


class Asked(NamedTuple):
    """What is asked of each record besides its contracts."""

    key_required: bool = False
    takes_null: bool = False  # a null value is a tombstone, which the contract of values takes
    earliest: int = -_DELTA_MAX  # of timestamp deltas
    latest: int = _DELTA_MAX

    def within(self, times: tuple[int, int], base: int) -> "Asked":
        """That, and a timestamp within these, of a batch whose deltas are from `base` on."""
        earliest, latest = (min(max(time - base, -_DELTA_MAX), _DELTA_MAX) for time in times)
        return self._replace(earliest=earliest, latest=latest)


def all_pass(section: bytes, count: int, checks: SideChecks, asked: Asked) -> bool:
    """
    Whether each of `count` records is known at once to keep its contracts, and to be what is asked of it.

    False says nothing more than that somebody must look closer: at a frame not seen before, at null, at numbers that
    are longer than usual.
    """
    keys = None if checks.key is None else checks.key.accepted
    values = None if checks.value is None else checks.value.accepted
    try:
        if walk is not None:
            return walk.passes(section, count, keys, values, *asked)
        return _passes(section, count, keys, values, asked)
    except (LookupError, ValueError, RecursionError):
        return False


def _passes(  # noqa: PLR0911, PLR0912, PLR0915 a call for each of a record's numbers would cost more than the rest
    section: bytes, count: int, keys: Accepted | None, values: Accepted | None, asked: Asked
) -> bool:
    key_required, takes_null, earliest, latest = asked
    position = 0
    for _ in range(count):
        number = section[position]
        position += 1
        if number >= 0x80:
            second = section[position]
            if second < 0x80:
                number += (second << 7) - 0x80
                position += 1
            else:
                number, position = read_uvarint(section, position - 1)
        if number & 1:
            return False
        end = position + (number >> 1)
        number = section[position + 1]  # timestamp delta, behind one byte of attributes, unused
        position += 2
        if number >= 0x80:
            number, position = read_uvarint(section, position - 1)
        if not earliest <= (number >> 1) ^ -(number & 1) <= latest:
            return False
        if section[position] >= 0x80:  # offset delta
            if section[position + 1] >= 0x80:
                _, position = read_uvarint(section, position)
            else:
                position += 2
        else:
            position += 1
        number = section[position]
        position += 1
        if number >= 0x80:
            number, position = read_uvarint(section, position - 1)
        if number & 1:
            if number != 1 or key_required or keys is not None:
                return False
        else:
            start, position = position, position + (number >> 1)
            if keys is not None:
                skip = keys[section[start : start + FRAME_BYTES]]
                if skip is not None and skip(section, start + FRAME_BYTES) != position:
                    return False
                if position - start < FRAME_BYTES:
                    return False
        number = section[position]
        position += 1
        if number >= 0x80:
            second = section[position]
            if second < 0x80:
                number += (second << 7) - 0x80
                position += 1
            else:
                number, position = read_uvarint(section, position - 1)
        if number & 1:
            if number != 1 or (values is not None and not takes_null):
                return False
        else:
            start, position = position, position + (number >> 1)
            if values is not None:
                skip = values[section[start : start + FRAME_BYTES]]
                if skip is not None:
                    if skip(section, start + FRAME_BYTES) != position:
                        return False
                elif number < 2 * FRAME_BYTES:
                    return False
        if position > end:
            return False
        position = end
    return position == len(section)


def fault_of(index: int, section: bytes, span: Span, checks: SideChecks) -> Fault | None:
    """Say how the record breaks a contract, if it does."""
    _, _, key_start, key_length, value_start, value_length, _ = span
    if checks.key is not None:
        violation = checks.key.violation(_datum(section, key_start, key_length))
        if violation is not None:
            return Fault.of(index, "key", violation)
    if checks.value is not None:
        violation = checks.value.violation(_datum(section, value_start, value_length))
        if violation is not None:
            return Fault.of(index, "value", violation)
    return None


def _datum(section: bytes, start: int, length: int) -> bytes | None:
    return None if length < 0 else section[start : start + length]


class WithoutRegistry:
    """The check of a broker that has no schema registry: nothing is let through unchecked."""

    accepted: Accepted = MappingProxyType({})
    keyless: Violation | None = None

    def __init__(self, *, is_key: bool) -> None:
        self._side = "keys" if is_key else "values"

    def violation(self, datum: bytes | None) -> Violation | None:
        reason = f"the topic validates its {self._side} and this broker has no schema registry"
        return Violation(reason, cause=Cause.REGISTRY)
