"""
Great Expectations on a Spark frame, quiet and bounded.

The only module that imports it. The context is ephemeral: nothing is kept on disk, nothing is sent anywhere, no
progress bar is drawn. Only the columns that the expectations name are read, once, and at most `PLACES_MAX` failing rows
an expectation come back to the driver.
"""

import json
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from fluvial.extras import needed
from fluvial.quality.outcome import Finding, Outcome
from fluvial.quality.suite import Build

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SAMPLE_ROWS_MAX = 10
PLACES_MAX = 1_000
"""Failing rows of an expectation whose places come back, to be kept in quarantine; the count is of all of them."""
LOCATION = ("_partition", "_offset")
"""Columns that say where in the log a row stands; shown beside the offending values when the table has them."""

_ROW_LEVEL = frozenset(
    {
        "ExpectColumnPairValuesAToBeGreaterThanB",
        "ExpectColumnPairValuesToBeEqual",
        "ExpectColumnPairValuesToBeInSet",
        "ExpectColumnValueLengthsToBeBetween",
        "ExpectColumnValueLengthsToEqual",
        "ExpectColumnValuesToBeBetween",
        "ExpectColumnValuesToBeInSet",
        "ExpectColumnValuesToBeNull",
        "ExpectColumnValuesToMatchLikePattern",
        "ExpectColumnValuesToMatchLikePatternList",
        "ExpectColumnValuesToMatchRegex",
        "ExpectColumnValuesToMatchRegexList",
        "ExpectColumnValuesToNotBeInSet",
        "ExpectColumnValuesToNotBeNull",
        "ExpectColumnValuesToNotMatchLikePattern",
        "ExpectColumnValuesToNotMatchLikePatternList",
        "ExpectColumnValuesToNotMatchRegex",
        "ExpectColumnValuesToNotMatchRegexList",
        "ExpectMulticolumnSumToEqual",
        "ExpectSelectColumnValuesToBeUniqueWithinRecord",
    }
)
_POSITION = "fluvial_position"
_COLUMN_ARGUMENTS = ("column", "column_A", "column_B", "column_list")
_ARGUMENTS_SHOWN = (*_COLUMN_ARGUMENTS, "value_set", "min_value", "max_value", "regex", "type_", "value", "mostly")


def _great_expectations() -> Any:
    # Read by Great Expectations when it is imported: without it every validation posts an event over the network.
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its imports use modules that newer Pythons deprecate
        with needed():
            import great_expectations
            import great_expectations.expectations
    return great_expectations


def expectations_of(build: Build) -> list[Any]:
    """Return what a suite asks for."""
    return list(build(_great_expectations().expectations))


def validate(frame: "DataFrame", build: Build, *, location: Sequence[str] = LOCATION) -> Outcome:
    """
    Evaluate the expectations that `build(great_expectations.expectations)` returns on the rows of `frame`.

    An expectation that cannot be evaluated is a finding that has not passed, never an exception.
    """
    return evaluate(frame, expectations_of(build), location=location)


def evaluate(
    frame: "DataFrame", wanted: list[Any], *, location: Sequence[str] = LOCATION, rows_here: int | None = None
) -> Outcome:
    """
    Evaluate expectations on the rows of `frame`, as `validate` does; the findings are in the order of `wanted`.

    `rows_here` is the number of rows of a frame that this process has read already.
    """
    started = time.perf_counter()
    located = [column for column in location if column in frame.columns]
    narrowed = frame.select(*columns_read(frame.columns, wanted, location=location))
    with nullcontext(narrowed) if rows_here is not None else _read_once(narrowed) as rows, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        count = rows.count() if rows_here is None else rows_here
        findings = _evaluate(_great_expectations(), rows, count, wanted, located)
    return Outcome(rows=count, seconds=time.perf_counter() - started, findings=tuple(findings))


def is_row_level(expectation: Any) -> bool:
    """Whether each row by itself shows if it fails, whatever the other rows are, and none may."""
    kinds = {kind.__name__ for kind in type(expectation).__mro__}
    return not kinds.isdisjoint(_ROW_LEVEL) and getattr(expectation, "mostly", 1) == 1


def text_of(expectation: Any) -> str:
    """Return a text that is the same for the same kind and arguments."""
    config = expectation.configuration
    return json.dumps([config.type, config.kwargs], sort_keys=True, default=str)


def _evaluate(gx: Any, rows: "DataFrame", count: int, wanted: list[Any], located: list[str]) -> list[Finding]:
    """
    Ask for the bare verdicts first, then for values and samples of what failed.

    Great Expectations collects a sample with a scan of its own for every expectation, whether or not it failed, while
    the verdicts of a whole suite share one; suites that pass are the rule.
    """
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    source = context.data_sources.add_spark("batch", persist=False)
    batch = (
        source.add_dataframe_asset("rows").add_batch_definition_whole_dataframe("all").get_batch({"dataframe": rows})
    )

    def results_of(expectations: list[Any], **result_format: Any) -> list[Any]:
        if not expectations:
            return []
        suite = gx.ExpectationSuite(name="suite", expectations=expectations)
        return list(batch.validate(suite, result_format=result_format).results)

    for position, wish in enumerate(wanted):
        wish.meta = {**(wish.meta or {}), _POSITION: position}
    verdicts = results_of([wish for wish in wanted if getattr(wish, "mostly", None) == 1], result_format="BOOLEAN_ONLY")
    findings = {_position(result): _finding(result, rows=count) for result in verdicts if result.success}
    explained = results_of(
        [wish for position, wish in enumerate(wanted) if position not in findings],
        result_format="SUMMARY",
        partial_unexpected_count=PLACES_MAX,
        # An empty list of names is an error to Great Expectations; without names it gives the values alone.
        **({"unexpected_index_column_names": located} if located else {}),
    )
    findings |= {_position(result): _finding(result, rows=count) for result in explained}
    return [findings[position] for position in range(len(wanted))]


def _position(result: Any) -> int:
    return int(result.expectation_config.meta[_POSITION])


def _finding(result: Any, *, rows: int) -> Finding:
    config, found = result.expectation_config, result.result or {}
    error = _error(result.exception_info)
    rows_found = _failing(config.kwargs, found)
    return Finding(
        expectation=config.type,
        arguments={name: config.kwargs[name] for name in _ARGUMENTS_SHOWN if config.kwargs.get(name) is not None},
        passed=bool(result.success),
        critical=str(getattr(config, "severity", "critical")).lower().endswith("critical"),
        checked=found.get("element_count", None if "observed_value" in found or error else rows),
        unexpected=found.get("unexpected_count", 0 if result.success and "observed_value" not in found else None),
        observed=found.get("observed_value"),
        sample=rows_found[:SAMPLE_ROWS_MAX],
        failing=rows_found,
        error=error,
    )


def _failing(arguments: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    rows = found.get("partial_unexpected_index_list") or found.get("unexpected_index_list")
    if rows is None:
        column, values = arguments.get("column", "value"), found.get("partial_unexpected_list", ())
        rows = [value if isinstance(value, Mapping) else {column: value} for value in values]
    return tuple(rows[:PLACES_MAX])


def _error(exception_info: Mapping[str, Any] | None) -> str | None:
    """Find the message in either shape: one for the whole expectation, or one per metric that it needed."""
    if not exception_info:
        return None
    infos = [exception_info] if "raised_exception" in exception_info else list(exception_info.values())
    messages = [str(info["exception_message"]) for info in infos if info.get("raised_exception")]
    return messages[0] if messages else None


def columns_read(columns: Sequence[str], wanted: Sequence[Any], *, location: Sequence[str] = LOCATION) -> list[str]:
    """
    Return those columns that the expectations name, and those of the location; all when one is about the table or
    carries a condition of its own.

    Names that are no columns are left out: their expectations then report it.
    """
    kept = set(location)
    for expectation in wanted:
        named = [getattr(expectation, argument, None) for argument in _COLUMN_ARGUMENTS]
        if not any(named) or getattr(expectation, "row_condition", None):
            return list(columns)
        for name in named:
            kept.update([name] if isinstance(name, str) else name or ())
    return [column for column in columns if column in kept] or list(columns)


@contextmanager
def _read_once(frame: "DataFrame") -> Iterator["DataFrame"]:
    """Keep the rows while several expectations go over them: each metric is a Spark job of its own."""
    frame.persist()
    try:
        yield frame
    finally:
        frame.unpersist()
