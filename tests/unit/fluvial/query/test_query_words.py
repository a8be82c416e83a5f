"""Statements cut into words: where they end, and their parameters."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluvial.query.words import StatementError, bound, parameters_of, statements_of, used_parameters, words_of


def test_words_are_those_of_sparks_grammar() -> None:
    text = "select `a``b`, 'it\\'s', r'\\', \"x;y\", 1.5e3 -- no; more\n from /* a /* nested */ ; */ t"
    assert [word.text for word in words_of(text)] == [
        *("select", "`a``b`", ",", "'it\\'s'", ",", "r'\\'", ",", '"x;y"', ",", "1.5e3", "from", "t"),
    ]
    assert words_of("`a``b`")[0].name == "a`b"


@pytest.mark.parametrize("text", ["select 'x", 'select "', "select `x", "select /* /* */ 1"])
def test_what_has_no_end_is_refused(text: str) -> None:
    with pytest.raises(StatementError, match="has no end"):
        words_of(text)


@given(st.text(alphabet="ab'\"`;-/*\\r\n 1.", max_size=40))
def test_words_stand_where_they_say_whatever_the_text(text: str) -> None:
    try:
        words = words_of(text)
    except StatementError:
        return
    assert all(text[word.start : word.end] == word.text for word in words)
    assert all(before.end <= after.start for before, after in pairwise(words))


def test_statements_end_at_a_semicolon_that_is_none_of_a_string_or_comment() -> None:
    assert statements_of("select ';' ; -- last;\n ; select 2 /*;*/;\n-- nothing") == ["select ';'", "select 2 /*;*/"]


def test_parameters_are_literals_that_no_value_can_leave() -> None:
    literals = parameters_of({"who": "ada", "n:int": "5", "day:date": "2026-01-01", "big:bigint": "7", "odd": "o'\\x"})
    assert bound("select :who, :n, :day, :big where a::int = :N", literals) == (
        "select 'ada', 5, cast('2026-01-01' as DATE), cast(7 as BIGINT) where a::int = 5"
    )
    assert bound("select :odd", literals) == "select cast(X'6f275c78' as string)"
    assert bound("select ':who', `:who`, a:who, a[1]:who -- :who", literals) == (
        "select ':who', `:who`, a:who, a[1]:who -- :who"
    )
    assert used_parameters("select :Who, a::n") == {"who"}


@pytest.mark.parametrize(
    ("pairs", "says"),
    [({"n:int": "1 or 1=1"}, "no whole number"), ({"a b": "1"}, "no name"), ({"n:int; drop": "1"}, "no name")],
)
def test_a_parameter_that_does_not_fit_is_refused(pairs: dict[str, str], says: str) -> None:
    with pytest.raises(StatementError, match=says):
        parameters_of(pairs)


def test_a_parameter_without_a_value_is_named() -> None:
    with pytest.raises(StatementError, match=":who has no value"):
        bound("select :who", parameters_of({"n": "1"}))
