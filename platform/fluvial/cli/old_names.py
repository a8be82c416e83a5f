"""The names that commands had until they moved into groups; each of them goes on for one release."""

from typing import Any

from typer.core import TyperGroup

from fluvial.cli import terminal

NEW_NAMES = {
    "adopt": ("table", "adopt"),
    "config": ("cluster", "config"),
    "consume": ("topic", "consume"),
    "elect-leaders": ("cluster", "elect"),
    "events": ("cluster", "events"),
    "produce": ("topic", "produce"),
    "quarantine": ("topic", "quarantine"),
    "registry": ("schema", "serve"),
    "verify": ("table", "verify"),
}


class Tree(TyperGroup):
    """The commands by their names of today, and, with a word on stderr, by their former ones."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first word names, with the words that are left for it."""
        if new := NEW_NAMES.get(args[0]):
            # The shell completes what is typed; it has nowhere to show a word.
            if not ctx.resilient_parsing:
                terminal.say(
                    f"`fluvial {args[0]}` is now `fluvial {' '.join(new)}`; the old name goes in the next release"
                )
            args = [*new, *args[1:]]
        return super().resolve_command(ctx, args)
