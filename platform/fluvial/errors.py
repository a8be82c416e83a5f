"""The root of the errors that a user of fluvial sees."""


class FluvialError(Exception):
    """Something a user can repair; `str()` is one clear line that says what and how."""


class ConfigError(FluvialError):
    """A setting is missing or wrong; the message names the file and key, and the repair."""
