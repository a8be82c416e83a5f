"""The records of `__transaction_state`, byte for byte as Kafka lays them out."""

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from log_broker.core.transactions.records import (
    MalformedTransactionRecordError,
    StoredTransaction,
    TransactionState,
    decode_transaction,
    decode_transaction_key,
    encode_transaction,
    encode_transaction_key,
)

ONGOING = StoredTransaction(
    producer_id=4,
    producer_epoch=3,
    timeout_ms=60_000,
    state=TransactionState.ONGOING,
    partitions=frozenset({("u", 1), ("t", 0), ("t", 2)}),
    last_update_ms=1_700_000_000_001,
    start_ms=1_700_000_000_000,
)

transactions = st.builds(
    StoredTransaction,
    producer_id=st.integers(0, 2**63 - 1),
    producer_epoch=st.integers(-1, 2**15 - 1),
    timeout_ms=st.integers(0, 2**31 - 1),
    state=st.sampled_from([TransactionState.ONGOING, TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_COMMIT]),
    partitions=st.frozensets(st.tuples(st.text(min_size=1, max_size=9), st.integers(0, 2**31 - 1)), max_size=6),
    last_update_ms=st.integers(-1, 2**60),
    start_ms=st.integers(-1, 2**60),
    previous_producer_id=st.integers(-1, 2**63 - 1),
    next_producer_id=st.integers(-1, 2**63 - 1),
    client_version=st.integers(0, 2),
)


def test_a_key() -> None:
    assert encode_transaction_key("tx-ü") == b"\0\0\0\5tx-\xc3\xbc"
    assert decode_transaction_key(b"\0\0\0\5tx-\xc3\xbc") == "tx-ü"
    assert decode_transaction_key(b"\0\1\0\0") is None, "another kind of record"
    with pytest.raises(MalformedTransactionRecordError):
        decode_transaction_key(b"\0\0\0\5tx")


def test_a_value() -> None:
    value = struct.pack(">hqhib", 1, 4, 3, 60_000, 1)
    value += b"\3" + b"\2t" + b"\3" + struct.pack(">ii", 0, 2) + b"\0" + b"\2u" + b"\2" + struct.pack(">i", 1) + b"\0"
    value += struct.pack(">qq", 1_700_000_000_001, 1_700_000_000_000) + b"\0"
    assert encode_transaction(ONGOING) == value
    assert decode_transaction(value) == ONGOING


def test_a_value_of_the_first_version() -> None:
    value = struct.pack(">hqhib", 0, 4, 3, 60_000, 1)
    value += struct.pack(">i", 2) + b"\0\1t" + struct.pack(">iii", 2, 0, 2) + b"\0\1u" + struct.pack(">ii", 1, 1)
    value += struct.pack(">qq", 1_700_000_000_001, 1_700_000_000_000)
    assert decode_transaction(value) == ONGOING
    empty = struct.pack(">hqhib", 0, 4, 3, 60_000, 0) + struct.pack(">iqq", -1, 5, -1)
    assert decode_transaction(empty).partitions == frozenset()


@given(transactions)
def test_a_value_is_read_as_it_was_written(transaction) -> None:
    assert decode_transaction(encode_transaction(transaction)) == transaction


@given(transactions, st.data())
def test_a_value_that_is_cut_short_is_refused(transaction, data) -> None:
    value = encode_transaction(transaction)
    with pytest.raises(MalformedTransactionRecordError):
        decode_transaction(value[: data.draw(st.integers(0, len(value) - 1))])


@given(st.binary(max_size=80))
def test_no_bytes_get_past_the_reader(value) -> None:
    with suppress(MalformedTransactionRecordError):
        decode_transaction(value)
