"""The entry of the `fluvial` command: its commands, and how whatever goes wrong is told."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from fluvial.cli import terminal, version
from fluvial.cli.access import acls, users
from fluvial.cli.cluster import clusters, nodes
from fluvial.cli.group import groups
from fluvial.cli.old_names import Tree
from fluvial.cli.profile import FLAG, HELP, choose, give_to_all
from fluvial.cli.run import adopt, certify, demo, init, run, serve, sql, ui, verify
from fluvial.cli.schema import registry, schemas
from fluvial.cli.table import erase, explain, table_replay, table_rows, tables
from fluvial.cli.topic import configs, consume, produce, quarantines, topic_changes, topic_repair, topics
from fluvial.errors import FluvialError
from fluvial.extras import needed

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
DEBUG = "FLUVIAL_DEBUG"
MESSAGE_MAX = 300

# typer carries its own copy of click in newer versions, so the class is found through what typer exports.
_UsageError: type[Exception] = next(each for each in typer.BadParameter.__mro__ if each.__name__ == "ClickException")

app = typer.Typer(
    name="fluvial",
    cls=Tree,
    help="Streams that settle into Delta: a Kafka-protocol log, a schema registry, Spark and Dagster in one package.",
    epilog="Start here:  fluvial up --detach",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=True,
)
init.add_to(app)
nodes.add_to(app)
run.add_to(app)
sql.add_to(app)
serve.add_to(app)
ui.add_to(app)
demo.add_to(app)
certify.add_to(app)
version.add_to(app)
for added in (produce, consume, topic_changes, topic_repair):
    added.add_to(topics.app)
topics.app.add_typer(quarantines.app, name="quarantine")
clusters.app.add_typer(configs.app, name="config")
registry.add_to(schemas.app)
table_rows.add_to(tables.app)
explain.add_to(tables.app)
verify.add_to(tables.app)
adopt.add_to(tables.app)
erase.add_to(tables.app)
table_replay.add_to(tables.app)
app.add_typer(topics.app, name="topic")
app.add_typer(schemas.app, name="schema")
app.add_typer(tables.app, name="table")
app.add_typer(groups.app, name="group")
app.add_typer(clusters.app, name="cluster")
app.add_typer(acls.app, name="acl")
app.add_typer(users.app, name="user")


@app.callback()
def _options(
    *,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of a failure that fluvial does not know.")
    ] = False,
    profile: Annotated[str | None, typer.Option(FLAG, metavar="NAME", help=HELP, show_default=False)] = None,
) -> None:
    if debug:
        os.environ[DEBUG] = "1"
    choose(profile)


def execute(words: Sequence[str]) -> int:
    """Run one command line; return its exit status."""
    try:
        with needed():
            command = typer.main.get_command(app)
            give_to_all(command)
            status = command(args=list(words), prog_name="fluvial", standalone_mode=False)
        sys.stdout.flush()
    except FluvialError as error:
        terminal.complain(str(error))
        return EXIT_FAILED
    except _UsageError as error:
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
    """Run the command line of this process."""
    sys.exit(execute(sys.argv[1:]))


if __name__ == "__main__":
    main()
