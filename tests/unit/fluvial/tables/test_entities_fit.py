"""A declaration held against its contract without Spark: what is refused, and what is left to Spark."""

import json
from typing import Any

import pytest

from fluvial.spark.avro import Contract, ContractError, check_record
from fluvial.tables import DeclarationError, compacted, count, history, latest, mean, state, sum_
from fluvial.tables.plan.fit import check_fit

FIELDS: list[Any] = [
    {"name": "order_id", "type": "string"},
    {"name": "customer", "type": ["null", "string"]},
    {"name": "amount", "type": ["null", "double"]},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "status", "type": {"type": "enum", "name": "Status", "symbols": ["PAID"]}},
    {"name": "tags", "type": ["null", {"type": "array", "items": "string"}]},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
    {"name": "either", "type": ["string", "int"]},
    {"name": "number", "type": {"type": "int"}},
]


def contract(**more: Any) -> Contract:
    schema = json.dumps({"type": "record", "name": "Order", "fields": FIELDS, **more})
    return Contract(subject="orders-value", writers={1: schema}, reader_id=1, reader=schema)


def with_key(key: str) -> Any:
    return state("customers", topic="orders", key=key, fields={"orders": count()})


def with_fold(fold: Any) -> Any:
    return state("customers", topic="orders", key="customer", fields={"it": fold})


@pytest.mark.parametrize("key", ["customer", "customer_key", "customers", "order_id", "who", "key", "numbr"])
def test_a_key_that_may_be_meant(key: str) -> None:
    check_fit(with_key(key), contract())
    check_fit(compacted("orders", key=key), contract())


@pytest.mark.parametrize(("key", "near"), [("custmer", "customer"), ("ordr_id", "order_id"), ("cutsomer", "customer")])
def test_a_key_that_is_spelt_wrong(key: str, near: str) -> None:
    with pytest.raises(DeclarationError, match=f'orders-value has no field {key}: did you mean key="{near}"'):
        check_fit(with_key(key), contract())


def test_a_key_that_is_another_field_than_the_contract_says() -> None:
    told = contract(**{"fluvial.key": "customer"})
    for right in (with_key("customer"), with_key("who"), compacted("orders"), history("orders")):
        check_fit(right, told)
    for wrong in (with_key("order_id"), compacted("orders", key="order_id")):
        with pytest.raises(DeclarationError, match=r'is customer .*order_id is another field: write key="customer"'):
            check_fit(wrong, told)


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("ordr_id", 'has no field ordr_id to tell events apart by; did you mean dedupe="order_id"'),
        ("zzz", "it has order_id, customer"),
        ("tags", "dedupe = tags is array: name a field that is one value"),
    ],
)
def test_an_id_of_events_is_one_of_the_contract(field: str, said: str) -> None:
    check_fit(history("orders", dedupe="order_id"), contract())
    with pytest.raises(DeclarationError, match=said):
        check_fit(history("orders", dedupe=field), contract())


@pytest.mark.parametrize("field", ["amount", "price", "number", "AMOUNT", "clock", "either", "amount * 2", "_offset"])
def test_a_number_may_be_summed_and_what_takes_more_than_a_look_is_left_to_spark(field: str) -> None:
    check_fit(with_fold(sum_(field)), contract())
    check_fit(with_fold(mean(field)), contract())


@pytest.mark.parametrize(
    ("field", "kind"),
    [("customer", "string"), ("status", "enum"), ("tags", "array"), ("at", "timestamp-millis"), ("Order_Id", "string")],
)
def test_what_is_no_number_is_not_summed(field: str, kind: str) -> None:
    check_fit(with_fold(latest(field)), contract())
    with pytest.raises(DeclarationError) as raised:
        check_fit(with_fold(sum_(field)), contract())
    assert str(raised.value) == (
        f'state("customers"): field it = sum({field}) needs a number, and {field} is {kind} in orders-value: make it '
        f'one, as in "cast({field} as double)", or name a field that is one (amount, price, number)'
    )


def test_a_field_that_is_spelt_wrong() -> None:
    with pytest.raises(DeclarationError, match=r"orders-value has no field amout: did you mean amount\?"):
        check_fit(with_fold(latest("amout")), contract())
    check_fit(with_fold(latest("current_date")), contract())


@pytest.mark.parametrize("text", ['syntax = "proto3"; message A {}', "", '{"type": "object"}'])
def test_a_contract_of_another_kind_is_refused_in_a_line(text: str) -> None:
    with pytest.raises(ContractError, match=r"the contract orders-value is no"):
        check_record("orders-value", text)
