"""Great Expectations on real Spark frames."""

from typing import TYPE_CHECKING, Any

import pytest

from fluvial.quality import Outcome, validate
from fluvial.quality.engine import SAMPLE_ROWS_MAX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def events(spark: "SparkSession") -> "DataFrame":
    """100 events on two partitions: 25 of an unknown type, one without a key, keys otherwise unique."""
    return spark.sql(
        """
        SELECT IF(id % 4 = 3, 'LOST', 'ARRIVED') AS event_type, IF(id = 7, NULL, id) AS key, 'unused' AS note,
               CAST(id % 2 AS INT) AS _partition, id DIV 2 AS _offset
        FROM range(100)
        """
    )


def only(outcome: Outcome) -> Any:
    (finding,) = outcome.findings
    return finding


def test_what_holds_passes_with_its_counts(events: "DataFrame") -> None:
    outcome = validate(events, lambda gxe: [gxe.ExpectColumnValuesToBeUnique(column="key")])
    assert (outcome.passed, outcome.rows) == (True, 100)
    assert (only(outcome).checked, only(outcome).unexpected, only(outcome).sample) == (100, 0, ())


def test_what_does_not_hold_is_counted_and_shown_with_its_place_in_the_log(events: "DataFrame") -> None:
    outcome = validate(
        events, lambda gxe: [gxe.ExpectColumnValuesToBeInSet(column="event_type", value_set=["ARRIVED"])]
    )
    finding = only(outcome)
    assert not outcome.passed
    assert (finding.checked, finding.unexpected, len(finding.sample)) == (100, 25, SAMPLE_ROWS_MAX)
    assert {"event_type": "LOST", "_partition": 1, "_offset": 1} in finding.sample
    assert str(finding) == "column values to be in set (column=event_type, value_set=['ARRIVED'])"


def test_rows_without_a_place_in_the_log_are_shown_by_their_values(events: "DataFrame") -> None:
    outcome = validate(
        events.select("event_type"),
        lambda gxe: [gxe.ExpectColumnValuesToBeInSet(column="event_type", value_set=["ARRIVED"])],
    )
    assert (only(outcome).unexpected, only(outcome).error) == (25, None)
    assert only(outcome).sample == ({"event_type": "LOST"},) * SAMPLE_ROWS_MAX


def test_findings_keep_the_order_of_the_suite_whatever_their_verdict(events: "DataFrame") -> None:
    outcome = validate(
        events,
        lambda gxe: [
            gxe.ExpectColumnValuesToNotBeNull(column="key"),
            gxe.ExpectColumnValuesToBeBetween(column="_offset", min_value=0),
            gxe.ExpectColumnValuesToNotBeNull(column="key", mostly=0.9),
            gxe.ExpectTableRowCountToBeBetween(min_value=1_000),
            gxe.ExpectColumnValuesToNotBeNull(column="event_type"),
        ],
    )
    assert [finding.passed for finding in outcome.findings] == [False, True, True, False, True]
    assert outcome.findings[2].unexpected == 1
    assert outcome.findings[3].observed == 100


def test_a_missing_column_is_a_finding_and_no_exception(events: "DataFrame") -> None:
    outcome = validate(
        events,
        lambda gxe: [
            gxe.ExpectColumnValuesToNotBeNull(column="tail"),
            gxe.ExpectColumnValuesToNotBeNull(column="event_type"),
        ],
    )
    assert [finding.passed for finding in outcome.findings] == [False, True]
    assert '"tail"' in str(outcome.findings[0].error)


def test_severity_is_the_expectations_own(events: "DataFrame") -> None:
    warned = validate(events, lambda gxe: [gxe.ExpectColumnValuesToNotBeNull(column="key", severity="warning")])
    assert (warned.passed, warned.critical) == (False, False)
    assert validate(events, lambda gxe: [gxe.ExpectColumnValuesToNotBeNull(column="key")]).critical


def test_no_rows_and_no_expectations_pass(events: "DataFrame") -> None:
    assert validate(events.limit(0), lambda gxe: [gxe.ExpectColumnValuesToNotBeNull(column="key")]).passed
    assert validate(events, lambda gxe: []).passed


def test_nothing_stays_cached(events: "DataFrame") -> None:
    validate(events, lambda gxe: [gxe.ExpectColumnValuesToNotBeNull(column="key")])
    assert events.sparkSession._jsparkSession.sharedState().cacheManager().isEmpty()
