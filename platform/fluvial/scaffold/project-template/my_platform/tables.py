"""The tables: what each is made from, and how."""

from fluvial.tables import count, latest, state, sum_

customers = state(
    "customers",
    topic="orders",
    key="customer",
    fields={
        "orders": count(),
        "spent": sum_("amount"),
        "last_order": latest("order_id"),
        "last_ordered_at": latest("ordered_at"),
    },
)
