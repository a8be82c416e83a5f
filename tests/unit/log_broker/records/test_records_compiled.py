"""What is compiled says what the Python says that it stands for."""

import random
from array import array
from collections.abc import Callable, Mapping

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from log_broker.records import build_batch, record
from log_broker.records.batch import HEADER_BYTES
from log_broker.records.compiled import walk
from log_broker.records.contracts import Asked, _passes
from log_broker.records.readable import MalformedRecordsError, check_readable
from log_broker.records.record import Span, spans_of

pytestmark = pytest.mark.skipif(walk is None, reason="nothing is compiled in this environment")

PLAIN, TEN, UNKNOWN = b"\0\0\0\0\1", b"\0\0\0\0\2", b"\0\0\0\0\3"


def ten_bytes(section: bytes, at: int) -> int:
    """A Skip of Python's: ten bytes that do not begin with 9."""
    if section[at] == 9:
        raise ValueError("nine")
    return at + 10


ACCEPTED = {PLAIN: None, TEN: ten_bytes}
sides = st.sampled_from([None, ACCEPTED, {PLAIN: None}, {}])


def section_of(seed: int, count: int, *, in_order: bool) -> bytearray:
    """Records of which most keep the contracts, and with `in_order` all."""
    dice = random.Random(seed)

    def datum() -> bytes | None:
        kinds = 2 if in_order else 9
        kind = dice.randrange(kinds)
        plain = PLAIN + dice.randbytes(dice.choice([0, 3, 70, 200]))
        return (
            plain,
            TEN + bytes([1]) + dice.randbytes(9),
            plain,
            plain,
            None,
            b"",
            PLAIN[:3],
            UNKNOWN,
            TEN + b"\x09",
        )[kind]

    headers = dice.choice([(), (("h", b"v"),)])
    return build_batch([(dice.randrange(300), datum(), datum(), headers) for _ in range(count)])[HEADER_BYTES:]


def said(passes: Callable[..., bool], *asked: object) -> bool:
    try:
        return passes(*asked)
    except (LookupError, ValueError):
        return False


@settings(deadline=None, max_examples=400)
@example(
    seed=1, count=40, keys=ACCEPTED, values=ACCEPTED, asked=Asked(key_required=True), in_order=True, at=None, bit=0
)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 40),
    keys=sides,
    values=sides,
    asked=st.builds(
        Asked, st.booleans(), st.booleans(), st.sampled_from([-(2**63) + 1, 0, 100]), st.sampled_from([2**63 - 1, 200])
    ),
    in_order=st.booleans(),
    at=st.none() | st.integers(0),
    bit=st.integers(0, 7),
)
def test_both_looks_say_the_same(
    seed: int,
    count: int,
    keys: Mapping[bytes, object] | None,
    values: Mapping[bytes, object] | None,
    asked: Asked,
    in_order: bool,
    at: int | None,
    bit: int,
) -> None:
    assert walk is not None
    section = section_of(seed, count, in_order=in_order)
    if at is not None:
        section[at % len(section)] ^= 1 << bit
    look = (bytes(section), count, keys, values)
    compiled, python = said(walk.passes, *look, *asked), said(_passes, *look, asked)
    try:
        check_readable(bytes(section), count)
        is_readable = True
    except MalformedRecordsError:
        is_readable = False
    assert compiled is python or (python and not is_readable)
    if in_order and at is None and keys in (None, ACCEPTED) and values in (None, ACCEPTED):
        assert compiled or (asked.earliest, asked.latest) != Asked()[2:]


def spans_or_none(section: bytearray, count: int) -> list[Span] | None:
    try:
        return list(spans_of(section, count))
    except MalformedRecordsError:
        return None


@settings(deadline=None, max_examples=400)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 600),
    more=st.integers(-1, 1),
    flips=st.lists(st.tuples(st.integers(0), st.integers(0, 7)), max_size=2),
)
def test_both_walks_find_the_same_spans(seed: int, count: int, more: int, flips: list[tuple[int, int]]) -> None:
    section = section_of(seed, count, in_order=False)
    for at, bit in flips:
        section[at % len(section)] ^= 1 << bit
    compiled = spans_or_none(section, count + more)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "walk", None)
        assert spans_or_none(section, count + more) == compiled
    assert flips or (compiled is None) is (more != 0)


def test_a_datum_ends_where_its_record_does() -> None:
    assert walk is not None
    boolean = walk.AvroSkip(array("i", [1, 0]).tobytes())
    for data, is_one in ((b"\1", True), (b"", False), (b"\2", False), (b"\1\1", False)):
        section = bytes(build_batch([(1, None, PLAIN + data, ())] * 2)[HEADER_BYTES:])
        assert walk.passes(section, 2, None, {PLAIN: boolean}, *Asked()) is is_one


def test_each_thing_that_is_asked_is_looked_at() -> None:
    records = [(1, None, PLAIN, ()), (8, None, None, ())]
    section, two = (bytes(build_batch(records[:count])[HEADER_BYTES:]) for count in (1, 2))
    known = {PLAIN: None}
    for passes in (lambda *look: walk.passes(*look[:-1], *look[-1]), _passes):  # type: ignore[union-attr]
        assert passes(section, 1, None, known, Asked())
        assert not passes(section, 1, None, known, Asked(key_required=True))
        assert not passes(section + b"\0", 1, None, known, Asked())
        assert not passes(section, 1, known, None, Asked())
        assert passes(two, 2, None, None, Asked())
        assert not passes(two, 2, None, known, Asked())
        assert passes(two, 2, None, known, Asked(takes_null=True))
        for earliest, latest, is_within in ((0, 7, True), (1, 7, False), (0, 6, False)):
            assert passes(two, 2, None, None, Asked(earliest=earliest, latest=latest)) is is_within
        for base in (-(2**63), 2**63 - 1):
            assert passes(section, 1, None, known, Asked().within((-(2**63), 2**63), base))
        assert not passes(section, 1, None, known, Asked().within((-(2**63), 0), 2**63 - 1))


def test_no_span_is_looked_for_outside() -> None:
    assert walk is not None
    section = bytes(build_batch([(1, b"k", b"v", ())] * 3)[HEADER_BYTES:])
    assert len(walk.spans(section, 0, 5)) == 3
    for position in (-1, -len(section), len(section), len(section) + 1, 2**62):
        assert walk.spans(section, position, 3) == []
    assert walk.spans(section, 0, -1) == []


def test_an_error_of_a_skip_is_the_callers() -> None:
    assert walk is not None

    def broken(section: bytes, at: int) -> int:
        raise RecursionError

    section = bytes(build_batch([(1, None, TEN, ())])[HEADER_BYTES:])
    with pytest.raises(RecursionError):
        walk.passes(section, 1, None, {TEN: broken}, *Asked())
    with pytest.raises(KeyError):
        walk.passes(section, 1, None, {PLAIN: None}, *Asked())
    assert not walk.passes(section, 1, None, {TEN: lambda section, at: 2**80}, *Asked())
