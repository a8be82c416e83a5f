"""The signals that end a command which has processes of its own to stop first."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopAsked(BaseException):
    """SIGINT, SIGTERM or SIGHUP came. Like KeyboardInterrupt it is no error and passes every `except Exception`."""


@contextmanager
def stop_signals_raise() -> Iterator[None]:
    """Turn the signals into StopAsked, so that whatever was started is stopped on the way out."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise StopAsked

    with _handled(stop):
        yield


@contextmanager
def stop_signals_wait() -> Iterator[None]:
    """Ignore the signals while processes are being stopped: a second Ctrl-C must not leave them behind."""
    with _handled(signal.SIG_IGN):
        yield


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in _NUMBERS}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
