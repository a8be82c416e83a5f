"""Ten marts, one of each kind, behind the tables of two topics; the last one reads another."""

import os
from typing import Any

from fluvial.tables import (
    aggregate,
    as_of,
    count,
    count_distinct,
    history,
    hopping,
    interval_join,
    last_non_null,
    max_,
    mean,
    min_,
    pipeline,
    session,
    state,
    sum_,
    top,
    tumbling,
)
from tests.by_changes import refresh_by_changes
from tests.e2e.kill_tables_project import TOPIC, accounts, newest, payments

TOPICS = (TOPIC, "refunds")

BY_CHANGES = "REFRESHED_BY_CHANGES"
# Tables of this size are always cheaper by the full query; drivers refresh them as large ones are.
if os.environ.get(BY_CHANGES):
    refresh_by_changes()

__all__ = ["accounts", "newest", "payments"]

refunds = history("refunds")
account_versions = state(
    "account_versions", topic=TOPIC, key="holder", fields={"city": last_non_null("city")}, scd2=True
)


@pipeline(name="large_payments", inputs=["history.payments"], version="1")
def large_payments(rows: Any) -> Any:
    """Rows of their own: of each payment none or one."""
    return rows.where("amount >= 500").select("number", "holder", "amount", "city", "at")


@pipeline(
    name="paid_and_refunded",
    inputs={"history.payments": "holder", "history.refunds": "holder"},
    key="holder",
    version="1",
)
def paid_and_refunded(paid: Any, refunded: Any) -> Any:
    """By key, from two inputs."""
    sums = [
        rows.groupBy("holder").sum("amount").withColumnRenamed("sum(amount)", name)
        for rows, name in ((paid, "paid"), (refunded, "refunded"))
    ]
    return sums[0].join(sums[1], "holder", "full_outer")


payments_by_city = aggregate(
    "history.payments",
    name="payments_by_city",
    by="city",
    fields={
        "payments": count(),
        "paid": sum_("amount"),
        "mean_amount": mean("amount"),
        "holders": count_distinct("holder"),
        "dearest": top("struct(amount, number)", 3),
    },
)
# Rows of a state go and come: what they were is taken from the sums, and minima are read again.
accounts_by_city = aggregate(
    "state.accounts",
    name="accounts_by_city",
    by="last_city",
    fields={"accounts": count(), "paid": sum_("paid"), "least": min_("paid"), "most": max_("paid")},
)
payments_by_time = aggregate(
    "history.payments",
    name="payments_by_time",
    by="city",
    fields={"payments": count(), "paid": sum_("amount")},
    window=tumbling("at", "10 seconds", watermark="5 seconds", lateness="10 seconds"),
)
final_refunds = aggregate(
    "history.refunds",
    name="final_refunds",
    by="city",
    fields={"refunds": count(), "most": max_("amount")},
    window=hopping("at", "20 seconds", "10 seconds", watermark="10 seconds", emit="final"),
)


@pipeline(
    name="visits",
    inputs={"history.payments": "holder"},
    key="holder",
    windows={"history.payments": session("at", "5 seconds", watermark="20 seconds")},
    version="1",
)
def visits(rows: Any) -> Any:
    """Payments of a holder that follow each other."""
    return rows.groupBy("holder", "window_start", "window_end").count()


refunded_payments = interval_join(
    "history.payments",
    "history.refunds",
    name="refunded_payments",
    on="holder",
    times=("at", "at"),
    within=("-5 seconds", "20 seconds"),
    how="left",
    select=["payments.number", "payments.amount", "refunds.number AS refund", "refunds.amount AS refunded"],
)
refunds_at_home = as_of(
    "history.refunds",
    "state.account_versions",
    name="refunds_at_home",
    on="holder",
    time="at",
    select=["refunds.number", "refunds.amount", "account_versions.city"],
    period="1 minute",
)
large_by_city = aggregate(
    "marts.large_payments", name="large_by_city", by="city", fields={"payments": count(), "most": max_("amount")}
)
