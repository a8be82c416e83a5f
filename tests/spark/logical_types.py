"""
A record with every logical type of Avro, once required and once in a union, and values of it.
"""

import datetime as dt
from decimal import Decimal
from typing import Any
from uuid import UUID

TYPES: dict[str, Any] = {
    "decimal_bytes": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3},
    "decimal_fixed": {
        "type": "fixed",
        "name": "Money",
        "size": 8,
        "logicalType": "decimal",
        "precision": 18,
        "scale": 2,
    },
    "day": {"type": "int", "logicalType": "date"},
    "time_ms": {"type": "int", "logicalType": "time-millis"},
    "time_us": {"type": "long", "logicalType": "time-micros"},
    "instant_ms": {"type": "long", "logicalType": "timestamp-millis"},
    "instant_us": {"type": "long", "logicalType": "timestamp-micros"},
    "local_ms": {"type": "long", "logicalType": "local-timestamp-millis"},
    "local_us": {"type": "long", "logicalType": "local-timestamp-micros"},
    "identity": {"type": "string", "logicalType": "uuid"},
    "lasted": {"type": "fixed", "name": "Span", "size": 12, "logicalType": "duration"},
    "state": {"type": "enum", "name": "State", "symbols": ["ON", "OFF"]},
    "tags": {"type": "map", "values": ["null", "long"]},
    "prices": {
        "type": "array",
        "items": {
            "type": "record",
            "name": "Price",
            "fields": [
                {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}}
            ],
        },
    },
}
NAMES = {"decimal_fixed": "Money", "lasted": "Span", "state": "State"}

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Everything",
    "doc": "It's all here.",
    "fields": [
        *({"name": name, "type": kind, "doc": f"A {name}."} for name, kind in TYPES.items()),
        *(
            {"name": f"maybe_{name}", "type": ["null", NAMES.get(name, kind)], "default": None}
            for name, kind in TYPES.items()
            if name != "prices"
        ),
    ],
}

INSTANT = dt.datetime(2013, 7, 4, 23, 59, 59, 123456, tzinfo=dt.UTC)
LOCAL = dt.datetime(1969, 12, 31, 23, 59, 59, 999001)
TIME = dt.time(23, 59, 59, 999999)
MONTHS_DAYS_MS = b"".join(number.to_bytes(4, "little") for number in (14, 30, 86_399_999))


def milliseconds(at: Any) -> Any:
    return at.replace(microsecond=at.microsecond // 1000 * 1000)


# As a producer writes them, and as Spark gives them back.
WRITTEN: dict[str, Any] = {
    "decimal_bytes": Decimal("-123456789.125"),
    "decimal_fixed": Decimal("9999999999999999.99"),
    "day": dt.date(1900, 2, 28),
    "time_ms": milliseconds(TIME),
    "time_us": TIME,
    "instant_ms": milliseconds(INSTANT),
    "instant_us": INSTANT,
    "local_ms": milliseconds(LOCAL),
    "local_us": LOCAL,
    "identity": UUID("6f1bd0e2-3f9a-4c7e-9d0e-4f6a1b2c3d4e"),
    "lasted": MONTHS_DAYS_MS,
    "state": "OFF",
    "tags": {"a": 1, "b": None},
    "prices": [{"amount": Decimal("0.01")}, {"amount": Decimal("-5.00")}],
}
READ: dict[str, Any] = {
    **WRITTEN,
    "time_ms": 86_399_999,
    "time_us": 86_399_999_999,
    "identity": "6f1bd0e2-3f9a-4c7e-9d0e-4f6a1b2c3d4e",
}
