"""The option `--profile`, which every command has."""

import os
from copy import copy
from typing import Any

from fluvial.profiles import VARIABLE

FLAG = "--profile"
HELP = f"Profile of fluvial.toml whose settings to use (default: {VARIABLE})."


def choose(profile: str | None) -> None:
    """Have this process, and those that it starts, use a profile; None changes nothing."""
    if profile is not None:
        os.environ[VARIABLE] = profile


def give_to_all(tree: Any) -> None:
    """Give the option of the tree's root to all of its commands; one that has a `--profile` of its own keeps that."""
    option = copy(next(each for each in tree.params if FLAG in each.opts))
    option.expose_value = False
    option.callback = lambda _context, _option, value: choose(value)
    _give(tree, option)


def _give(group: Any, option: Any) -> None:
    for command in group.commands.values():
        if hasattr(command, "commands"):
            _give(command, option)
        elif not any(FLAG in each.opts for each in command.params):
            command.params.append(option)
