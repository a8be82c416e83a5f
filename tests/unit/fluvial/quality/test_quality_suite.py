"""What a suite is, without running it."""

from typing import Any

import pytest

from fluvial.quality import Scope, expectations
from fluvial.quality.suite import SuiteError

KNOWN_TYPES = {"ARRIVED", "DEPARTED", "CANCELLED"}


@expectations("history.orders", blocking=True)
def known_types(gxe: Any) -> list[Any]:
    """Orders are of a known type."""
    return [gxe.ExpectColumnValuesToBeInSet(column="type", value_set=sorted(KNOWN_TYPES))]


def test_a_suite_takes_its_name_and_description_from_the_function() -> None:
    assert (known_types.name, known_types.description) == ("known_types", "Orders are of a known type.")
    assert known_types.blocking


def test_a_history_is_checked_batch_by_batch_and_a_state_as_a_whole() -> None:
    def nothing(gxe: Any) -> list[Any]:
        return []

    assert expectations("history.orders")(nothing).scope is Scope.BATCH
    assert expectations("state.customers")(nothing).scope is Scope.TABLE
    assert expectations("history.orders", scope=Scope.TABLE)(nothing).scope is Scope.TABLE


@pytest.mark.parametrize("table", ["orders", "", ".orders", "history."])
def test_a_table_without_a_database_is_refused(table: str) -> None:
    with pytest.raises(SuiteError, match=r"database\.name"):
        expectations(table)


def at_least(minimum: int) -> Any:
    @expectations("state.customers", name="at_least")
    def suite(gxe: Any) -> list[Any]:
        return [gxe.ExpectColumnValuesToBeBetween(column="orders", min_value=minimum)]

    return suite


def test_the_fingerprint_changes_with_what_is_asked() -> None:
    assert at_least(0).fingerprint == at_least(0).fingerprint
    assert at_least(0).fingerprint != at_least(1).fingerprint


def test_the_fingerprint_sees_the_constants_the_suite_names(monkeypatch: pytest.MonkeyPatch) -> None:
    before = known_types.fingerprint
    monkeypatch.setitem(globals(), "KNOWN_TYPES", {"ARRIVED"})
    assert known_types.fingerprint != before
