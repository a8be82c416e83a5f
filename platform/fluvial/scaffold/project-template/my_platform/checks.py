"""What must hold of the tables."""

from typing import Any

from fluvial.quality import expectations


@expectations("state.customers", blocking=True)
def sound_customers(gxe: Any) -> list[Any]:
    """Each customer has one row, and nobody has spent less than nothing."""
    return [
        gxe.ExpectColumnValuesToBeUnique(column="customer"),
        gxe.ExpectColumnValuesToBeBetween(column="spent", min_value=0),
    ]
