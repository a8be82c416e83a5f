"""What may enter a log, and the error code for what may not."""

import struct

import pytest

from log_broker.errors import BrokerError, ErrorCode
from log_broker.interfaces import Contract, Skip, Violation
from log_broker.records import Codec, build_batch
from log_broker.records.batch import CONTROL, HEADER_BYTES, seal
from log_broker.records.readable import MalformedRecordsError
from log_broker.records.validation import (
    RECORD_ERRORS_MAX,
    RecordRules,
    RecordsRefusedError,
    check_batch,
    check_client_version,
    check_records,
    side_checks,
)

GOOD = b"\0\0\0\0\x07"


def batch_of(count: int = 3, **fields) -> bytearray:
    return build_batch([(1000 + at, b"k%d" % at, b"value", ()) for at in range(count)], **fields)


def refused(batch: bytes | bytearray, *, bytes_max: int = 1_000_000) -> ErrorCode:
    with pytest.raises(BrokerError) as refusal:
        check_batch(batch, bytes_max=bytes_max)
    return refusal.value.code


def patched(offset: int, layout: str, value: int) -> bytearray:
    batch = batch_of()
    struct.pack_into(layout, batch, offset, value)
    seal(batch)
    return batch


def test_a_sound_batch_passes() -> None:
    assert check_batch(batch_of(), bytes_max=1000).record_count == 3


@pytest.mark.parametrize("cut", [1, 30, 70])
def test_a_batch_that_is_cut_short_is_corrupt(cut) -> None:
    assert refused(batch_of()[:-cut]) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("size", [0, 1, 16])
def test_too_little_for_a_batch_is_no_batch(size) -> None:
    assert refused(batch_of()[:size]) is ErrorCode.INVALID_RECORD


def test_a_flipped_bit_is_corrupt() -> None:
    batch = batch_of()
    for position in (17, 22, 40, 61, len(batch) - 1):
        damaged = bytearray(batch)
        damaged[position] ^= 4
        assert refused(damaged) is ErrorCode.CORRUPT_MESSAGE


def test_two_batches_for_one_partition_are_refused() -> None:
    assert refused(batch_of() + batch_of()) is ErrorCode.INVALID_RECORD


def test_a_large_batch_is_too_large() -> None:
    batch = batch_of()
    assert refused(batch, bytes_max=len(batch) - 1) is ErrorCode.MESSAGE_TOO_LARGE
    check_batch(batch, bytes_max=len(batch))


@pytest.mark.parametrize(
    ("what", "batch"),
    [
        ("message format 1", patched(16, ">b", 1)),
        ("base offset", patched(0, ">q", 5)),
        ("last offset delta", patched(23, ">i", 7)),
        ("no records", patched(57, ">i", 0)),
        ("negative count", patched(57, ">i", -1)),
        ("control", patched(21, ">h", CONTROL)),
        ("producer without sequence", patched(43, ">q", 12)),
    ],
)
def test_a_header_that_no_client_may_send_is_an_invalid_record(what, batch) -> None:
    assert refused(batch) is ErrorCode.INVALID_RECORD, what


def test_an_unknown_codec_is_refused() -> None:
    assert refused(patched(21, ">h", 6)) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_old_clients_get_the_codes_of_their_time() -> None:
    old = patched(16, ">b", 1)
    with pytest.raises(BrokerError) as refusal:
        check_client_version(old, 2)
    assert refusal.value.code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    check_client_version(old, 3)
    with pytest.raises(BrokerError) as refusal:
        check_client_version(batch_of(codec=Codec.ZSTD), 6)
    assert refusal.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    check_client_version(batch_of(codec=Codec.LZ4), 3)


class Registry:
    """Knows one schema id, whose payloads begin with the letter g, and notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[bytes | None] = []
        self.contracts: list[Contract] = []

    def check_of(self, contract: Contract) -> "Check":
        self.contracts.append(contract)
        return Check(self, contract)


class Check:
    keyless: Violation | None = None

    def __init__(self, registry: Registry, contract: Contract) -> None:
        self.registry = registry
        self.contract = contract
        self.accepted: dict[bytes, Skip | None] = {}

    def violation(self, datum: bytes | None) -> Violation | None:
        self.registry.asked.append(datum)
        if datum is None:
            return None if self.contract.takes_null else Violation("null")
        if not datum.startswith(GOOD):
            return Violation(f"unknown schema in the {'key' if self.contract.is_key else 'value'}", "name")
        self.accepted[GOOD] = None if self.contract.level == "id" else one_g
        return None if self.contract.level == "id" or datum == GOOD + b"g" else Violation("no g")


def one_g(section: bytes, at: int) -> int:
    if section[at : at + 1] != b"g":
        raise ValueError
    return at + 1


def look(batch: bytearray, rules: RecordRules, registry: Registry | None = None, now_ms: int = 0) -> None:
    check_records(batch, check_batch(batch, bytes_max=10**9), rules, side_checks(rules, registry), now_ms)


@pytest.mark.parametrize("codec", Codec)
def test_a_compacted_topic_wants_keys_of_all_records(codec) -> None:
    rules = RecordRules("t", key_required=True)
    keys = [b"a", None, b"", None]
    batch = build_batch([(1, key, b"v", ()) for key in keys], codec=codec)
    with pytest.raises(RecordsRefusedError) as refusal:
        look(batch, rules)
    assert [index for index, _ in refusal.value.record_errors] == [1, 3]
    assert refusal.value.code is ErrorCode.INVALID_RECORD
    look(build_batch([(1, b"a", None, ())], codec=codec), rules)


def test_the_id_level_names_each_record_and_why() -> None:
    bad = b"\0\0\0\0\x08"
    values = [GOOD + b"1", GOOD + b"2", None, bad + b"3", GOOD + b"4", b"\0", bad]
    with pytest.raises(RecordsRefusedError) as refusal:
        look(build_batch([(1, None, v, ()) for v in values]), RecordRules("t", value_validation="id"), Registry())
    assert [(fault.at, fault.part, fault.field) for fault in refusal.value.faults] == [
        (2, "value", ""),
        (3, "value", "name"),
        (5, "value", "name"),
        (6, "value", "name"),
    ]
    assert "unknown schema in the value" in str(refusal.value)
    assert not refusal.value.can_be_left_out


@pytest.mark.parametrize("level", ["id", "payload"])
def test_of_a_batch_of_a_new_frame_one_record_is_asked_about(level) -> None:
    registry = Registry()
    values = [GOOD + b"g"] * 50
    look(build_batch([(1, None, value, ()) for value in values]), RecordRules("t", value_validation=level), registry)
    assert registry.asked == values[:1]


def test_a_batch_of_known_frames_is_not_looked_at_twice() -> None:
    check = Registry().check_of(Contract(topic="t", is_key=False, level="payload"))
    assert check.violation(GOOD + b"g") is None
    del check.registry.asked[:]
    fixed = OneCheck(check)
    rules = RecordRules("t", value_validation="payload")
    long_headers = (("h" * 200, b"x" * 5000),)
    look(build_batch([(at, b"k" * at, GOOD + b"g", ()) for at in range(300)]), rules, fixed)
    look(build_batch([(at * 10**6, None, GOOD + b"g", long_headers) for at in range(300)]), rules, fixed)
    assert check.registry.asked == []
    for value in (GOOD, GOOD + b"gg", GOOD + b"x", b"", None):
        with pytest.raises(RecordsRefusedError) as refusal:
            look(build_batch([(1, None, v, ()) for v in (GOOD + b"g", value)]), rules, fixed)
        assert [fault.at for fault in refusal.value.faults] == [1], value


class OneCheck:
    """A registry that goes on with what it has learned."""

    def __init__(self, check: Check) -> None:
        self.check = check

    def check_of(self, contract: Contract) -> Check:
        return self.check


def test_keys_and_values_have_contracts_of_their_own() -> None:
    registry = Registry()
    rules = RecordRules("t", key_validation="payload", value_validation="id", value_strategy="RecordNameStrategy")
    look(build_batch([(1, GOOD + b"g", GOOD, ())]), rules, registry)
    assert registry.asked == [GOOD + b"g", GOOD]
    assert registry.contracts == [
        Contract(topic="t", is_key=True, level="payload"),
        Contract(topic="t", is_key=False, level="id", strategy="RecordNameStrategy"),
    ]


def test_null_is_a_tombstone_of_compacted_topics_alone() -> None:
    batch = build_batch([(1, GOOD, None, ())])
    for level in ("id", "payload"):
        look(batch, RecordRules("t", key_required=True, value_validation=level), Registry())
        with pytest.raises(RecordsRefusedError, match="null"):
            look(batch, RecordRules("t", value_validation=level), Registry())


def test_only_what_breaks_a_contract_can_be_left_out() -> None:
    rules = RecordRules("t", key_required=True, value_validation="id", quarantines=True)
    for keys, expected in (([b"a", b"b"], True), ([b"a", None], False)):
        with pytest.raises(RecordsRefusedError) as refusal:
            look(build_batch([(1, key, b"plain", ()) for key in keys]), rules, Registry())
        assert refusal.value.can_be_left_out is expected
        assert [fault.at for fault in refusal.value.faults] == [0, 1]


def test_a_record_that_lies_about_its_place_is_malformed() -> None:
    batch = build_batch([(1, None, b"plain", ()), (1, None, b"plain", ())])
    section = HEADER_BYTES + (len(batch) - HEADER_BYTES) // 2
    assert batch[section + 3] == 2
    batch[section + 3] = 8
    seal(batch)
    with pytest.raises(MalformedRecordsError, match="offset delta 4"):
        look(batch, RecordRules("t", value_validation="id"), Registry())


def test_validation_without_a_registry_refuses_rather_than_lets_through() -> None:
    with pytest.raises(RecordsRefusedError, match="no schema registry"):
        look(batch_of(), RecordRules("t", value_validation="id"))


def test_the_list_of_refused_records_has_an_end() -> None:
    batch = build_batch([(1, None, b"v", ())] * (RECORD_ERRORS_MAX * 3))
    with pytest.raises(RecordsRefusedError) as refusal:
        look(batch, RecordRules("t", key_required=True))
    assert len(refusal.value.record_errors) == RECORD_ERRORS_MAX


def test_timestamps_outside_the_topics_bounds_are_refused() -> None:
    batch = batch_of()  # 1000, 1001, 1002
    ahead = RecordRules("t", timestamp_after_ms_max=100)
    look(batch, ahead, now_ms=902)
    with pytest.raises(RecordsRefusedError) as refusal:
        look(batch, ahead, now_ms=900)
    assert refusal.value.code is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in refusal.value.record_errors] == [1, 2]

    behind = RecordRules("t", timestamp_before_ms_max=100)
    look(batch, behind, now_ms=1100)
    with pytest.raises(RecordsRefusedError) as refusal:
        look(batch, behind, now_ms=1102)
    assert [index for index, _ in refusal.value.record_errors] == [0, 1]


def test_records_that_do_not_decompress_are_corrupt() -> None:
    batch = batch_of(codec=Codec.NONE)
    struct.pack_into(">h", batch, 21, Codec.ZSTD)
    seal(batch)
    with pytest.raises(BrokerError) as refusal:
        look(batch, RecordRules("t", key_required=True))
    assert refusal.value.code is ErrorCode.CORRUPT_MESSAGE
