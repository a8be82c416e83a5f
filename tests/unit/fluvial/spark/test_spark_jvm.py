"""What the JVM says on stderr is passed on, but for one warning."""

import os

import pytest

from fluvial.spark.jvm import WARNING, pass_on


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_all_that_the_jvm_says_is_passed_on_but_the_warning(size: int) -> None:
    before, after = b"WARNING: sharing is off\n", b"Exception in thread main\nWARNING: Using"
    reading, writing = os.pipe()
    said = before + WARNING + after
    for start in range(0, len(said), size):
        os.write(writing, said[start : start + size])
    os.close(writing)
    heard: list[bytes] = []
    pass_on(reading, heard.append)
    assert b"".join(heard) == before + after


def test_a_line_is_passed_on_before_the_next_one_comes() -> None:
    reading, writing = os.pipe()
    heard: list[bytes] = []

    def hear(said: bytes) -> None:
        if said:
            heard.append(said)
            os.close(writing)

    os.write(writing, b"java: out of memory\n")
    pass_on(reading, hear)
    assert heard == [b"java: out of memory\n"]
