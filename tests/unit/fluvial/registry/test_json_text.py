"""How deep JSON may be is ours to say, and the same on every Python."""

import pytest

from fluvial.registry.formats.json_text import LEVELS_MAX, loads


def arrays(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_the_last_level_that_is_read(opening: str) -> None:
    closing = "]" if opening == "[" else "}"
    value = loads(opening * LEVELS_MAX + "1" + closing * LEVELS_MAX)
    for _ in range(LEVELS_MAX):
        value = value[0] if opening == "[" else value["a"]
    assert value == 1
    with pytest.raises(RecursionError):
        loads(opening * (LEVELS_MAX + 1) + "1" + closing * (LEVELS_MAX + 1))


def test_many_beside_each_other_are_not_deep() -> None:
    assert len(loads("[" + ",".join(["{}"] * 10_000) + "]")) == 10_000


def test_what_stands_in_strings_is_not_counted() -> None:
    assert loads('["' + "[" * 10_000 + '"]') == ["[" * 10_000]
