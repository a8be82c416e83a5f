"""The tables that are killed: one of each kind, the state written back to a topic, and that topic read again."""

from typing import Any

from fluvial.tables import compacted, count, history, last_non_null, mean, pipeline, publish, state, sum_

TOPIC = "payments"
PUBLISHED = "account-state"
SCHEMA = {
    "type": "record",
    "name": "Payment",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "holder", "type": "string"},
        {"name": "amount", "type": ["null", "long"], "default": None},
        {"name": "city", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}

payments = history(TOPIC)
newest = compacted(TOPIC, key="account")
accounts = state(
    "accounts",
    topic=TOPIC,
    key="account",
    fields={
        "payments": count(),
        "paid": sum_("amount"),
        "mean_amount": mean("amount"),
        "last_city": last_non_null("city"),
    },
)
written_back = publish("state.accounts", topic=PUBLISHED, key="account")
copies = compacted(PUBLISHED, key="account")


@pipeline(name="by_city", inputs=["state.accounts"], version="1")
def by_city(rows: Any) -> Any:
    """How much was paid by accounts of each city."""
    return rows.groupBy("last_city").sum("paid").withColumnRenamed("sum(paid)", "paid")
