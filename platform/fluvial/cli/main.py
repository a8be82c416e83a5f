"""The entry of the `fluvial` command: its commands, and how whatever goes wrong is told."""

import gc
import os
import sys
from collections.abc import Sequence

from fluvial.cli import terminal
from fluvial.errors import FluvialError
from fluvial.extras import needed

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
MESSAGE_MAX = 300


def execute(words: Sequence[str]) -> int:
    """Run one command line; return its exit status."""
    import typer

    from fluvial.cli.profile import give_to_all
    from fluvial.cli.tree import DEBUG, branch_of

    # typer carries its own copy of click in newer versions, so the class is found through what typer exports.
    usage_error: type[Exception] = next(
        each for each in typer.BadParameter.__mro__ if each.__name__ == "ClickException"
    )
    try:
        with needed():
            command = typer.main.get_command(branch_of(words))
            give_to_all(command)
            status = command(args=list(words), prog_name="fluvial", standalone_mode=False)
        sys.stdout.flush()
    except FluvialError as error:
        terminal.complain(str(error))
        return EXIT_FAILED
    except usage_error as error:
        return _usage(error)
    except (typer.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except OSError as error:
        _forget_stdout()
        # Whoever closed the pipe has seen enough of the answer.
        if not isinstance(error, BrokenPipeError):
            terminal.complain(f"{error.filename or 'the answer cannot be written'}: {error.strerror or error}")
        return EXIT_FAILED
    except Exception as error:
        from fluvial.delta.failures import explained

        explanation = explained(error, "this command")
        if explanation is not None:
            terminal.complain(str(explanation))
        elif os.environ.get(DEBUG):
            raise
        else:
            first = (str(error).strip() or "no message").splitlines()[0]
            terminal.complain(
                f"unexpected {type(error).__name__}: {first[:MESSAGE_MAX]}; `fluvial --debug …` shows where, which "
                "belongs into a report of this bug"
            )
        return EXIT_FAILED
    return status if isinstance(status, int) else 0


def _forget_stdout() -> None:
    """Let the interpreter flush what is left of the answer into nothing when it ends, not into what refused it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _usage(error: Exception) -> int:
    message = error.format_message()  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        terminal.say(message)
        return EXIT_USAGE
    hint = f"; see `{context.command_path} --help`" if context is not None else ""
    terminal.complain(f"{message.rstrip('.')}{hint}")
    return EXIT_USAGE


def main() -> None:
    """Run the command line of this process, or have a process that is kept run it."""
    words = sys.argv[1:]
    status = _run_elsewhere(words) if words[:1] == ["run"] else None
    status = execute(words) if status is None else status
    # The last collection of the interpreter would go through all that was imported, for a second after Dagster's.
    gc.freeze()
    sys.exit(status)


def _run_elsewhere(words: Sequence[str]) -> int | None:
    """Before anything is imported that only the process needs that runs it."""
    from fluvial.cli.run.handed_over import hand_over_unread

    try:
        return hand_over_unread(words)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    main()
