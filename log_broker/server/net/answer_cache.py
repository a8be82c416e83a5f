"""Answers as they were encoded, for those that ask the same."""

from collections.abc import Hashable

CACHED_ANSWERS_MAX = 64
CACHED_ANSWERS_BYTES_MAX = 8 * 1024 * 1024


class AnswerCache:
    """
    Encoded Metadata answers by what was asked; cleared whenever the image changes.

    They take CACHED_ANSWERS_BYTES_MAX at the most, or are one.
    """

    def __init__(self) -> None:
        self._answers: dict[Hashable, bytes] = {}
        self._bytes = 0

    def get(self, key: Hashable) -> bytes | None:
        return self._answers.get(key)

    def put(self, key: Hashable, answer: bytes) -> None:
        if len(self._answers) >= CACHED_ANSWERS_MAX or self._bytes + len(answer) > CACHED_ANSWERS_BYTES_MAX:
            self.clear()
        self._answers[key] = answer
        self._bytes += len(answer)

    def clear(self) -> None:
        self._answers.clear()
        self._bytes = 0
