"""The rules by which `make compat` calls a suite good."""

from tests.compat.findings import PAGE, Outcome, allowlist, judge


def outcome(*passed: str, failed: tuple[str, ...] = (), skipped: tuple[str, ...] = ()) -> Outcome:
    return Outcome(passed=frozenset(passed), failed=frozenset(failed), skipped=dict.fromkeys(skipped, "why"))


def test_what_is_excepted_may_fail_or_be_skipped() -> None:
    assert judge(outcome("a", failed=("b",), skipped=("c",)), ["b", "c"]).good


def test_anything_else_may_not() -> None:
    verdict = judge(outcome("a", failed=("b",), skipped=("c",)), [])
    assert (verdict.failed, verdict.skipped, verdict.good) == (("b",), ("c",), False)


def test_an_exception_that_is_not_needed_is_told() -> None:
    verdict = judge(outcome("a", "b"), ["b", "gone"])
    assert (verdict.stale, verdict.good) == (("b", "gone"), False)


def test_a_suite_in_which_nothing_passed_is_not_good() -> None:
    assert not judge(outcome(), []).good
    assert not judge(outcome(skipped=("a",)), ["a"]).good
    assert not judge(Outcome(skipped={}, problem="it did not start"), []).good


def test_the_page_is_read() -> None:
    rows = ("| suite | test | reason |", "| --- | --- | --- |", "| one | `a` | because |", "| one | `b` |  |")
    page = "\n".join(["", "## Allowlist", "", *rows, "", "## More", "", "| two | `c` | no |", ""])
    assert allowlist(page) == {"one": {"a": "because"}}
    parts = ("### Secured", "| one | `s` | signs in |", "### In plain text", "| one | `p` | plain |", "## More")
    page = "\n".join(["", "## Allowlist", *rows, *parts, "| one | `x` | no |"])
    assert allowlist(page) == {"one": {"a": "because", "p": "plain"}}
    assert allowlist(page, secured=True) == {"one": {"a": "because", "s": "signs in"}}
    assert set(allowlist(PAGE.read_text(encoding="utf-8"))) >= {"franz-go"}
