"""A Great Expectations suite of a contract, in the JSON that its stores keep."""

import re
from collections.abc import Callable
from typing import Any

from fluvial.quality.contract import contract_expectations


def expectation_suite(schema: Any, name: str) -> dict[str, Any]:
    """
    The suite of a record: what may not be null, enums, and the `fluvial.` properties of its fields.

    It is the suite that the checks of a history table run.
    """
    return {"name": name, "expectations": contract_expectations(schema)(_AsJson()), "meta": {}}


class _AsJson:
    """Stands in for Great Expectations' module of classes, so that it need not be imported to name them."""

    def __getattr__(self, name: str) -> Callable[..., dict[str, Any]]:
        kind = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()

        def expectation(**arguments: Any) -> dict[str, Any]:
            return {"type": kind, "kwargs": arguments, "meta": {}}

        return expectation
