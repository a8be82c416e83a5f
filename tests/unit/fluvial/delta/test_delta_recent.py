"""
A bounded memory of what was read or written lately.
"""

from fluvial.delta.recent import Recent


def test_what_was_not_asked_for_longest_goes_first() -> None:
    recent: Recent[str] = Recent(30)
    for name in "abc":
        recent.put(name, name.upper(), 10)
    assert recent.get("a") == "A"
    recent.put("d", "D", 10)
    assert [recent.get(name) for name in "abcd"] == ["A", None, "C", "D"]


def test_a_value_that_is_put_again_counts_once() -> None:
    recent: Recent[int] = Recent(30)
    recent.put("other", 0, 10)
    for number in range(10):
        recent.put("same", number, 20)
    assert (recent.get("other"), recent.get("same")) == (0, 9)
    recent.put("same", 10, 21)
    assert (recent.get("other"), recent.get("same")) == (None, 10)


def test_the_newest_is_kept_however_large_it_is() -> None:
    recent: Recent[str] = Recent(0)
    recent.put("a", "A", 10)
    recent.put("b", "B", 10)
    assert (recent.get("a"), recent.get("b")) == (None, "B")
    recent.clear()
    assert recent.get("b") is None
