"""
The tree of commands. A command line imports the one branch that it is about: all of them take half a second.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Annotated

import typer

from fluvial.cli.old_names import NEW_NAMES, Tree
from fluvial.cli.profile import FLAG, HELP, choose

DEBUG = "FLUVIAL_DEBUG"


def whole() -> typer.Typer:
    """Return all commands, for help, completion and whatever is about no known one."""
    return _app(tuple(dict.fromkeys(BRANCHES.values())))


def branch_of(words: Sequence[str]) -> typer.Typer:
    """Return as much of the tree as a command line needs."""
    left = iter(words)
    for word in left:
        if word == FLAG:
            next(left, None)
        elif not word.startswith("-"):
            branch = BRANCHES.get(NEW_NAMES.get(word, (word,))[0])
            return whole() if branch is None else _app((branch,))
        elif word != "--debug" and not word.startswith(f"{FLAG}="):
            break
    return whole()


@cache
def _app(branches: tuple[Callable[[typer.Typer], None], ...]) -> typer.Typer:
    app = typer.Typer(
        name="fluvial",
        cls=Tree,
        help="Streams that settle into Delta: a Kafka-protocol log, a schema registry, Spark and Dagster in one "
        "package.",
        epilog="Start here:  fluvial up --detach",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        add_completion=True,
    )
    app.callback()(_options)
    for add in branches:
        add(app)
    return app


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


def _init(app: typer.Typer) -> None:
    from fluvial.cli.run import init

    init.add_to(app)


def _nodes(app: typer.Typer) -> None:
    from fluvial.cli.cluster import nodes

    nodes.add_to(app)


def _run(app: typer.Typer) -> None:
    from fluvial.cli.run import run

    run.add_to(app)


def _sql(app: typer.Typer) -> None:
    from fluvial.cli.run import sql

    sql.add_to(app)


def _serve(app: typer.Typer) -> None:
    from fluvial.cli.run import serve

    serve.add_to(app)


def _ui(app: typer.Typer) -> None:
    from fluvial.cli.run import ui

    ui.add_to(app)


def _demo(app: typer.Typer) -> None:
    from fluvial.cli.run import demo

    demo.add_to(app)


def _certify(app: typer.Typer) -> None:
    from fluvial.cli.run import certify

    certify.add_to(app)


def _version(app: typer.Typer) -> None:
    from fluvial.cli import version

    version.add_to(app)


def _topic(app: typer.Typer) -> None:
    app.add_typer(_topics(), name="topic")


@cache
def _topics() -> typer.Typer:
    from fluvial.cli.topic import consume, produce, quarantines, topic_changes, topic_repair, topics

    for added in (produce, consume, topic_changes, topic_repair):
        added.add_to(topics.app)
    topics.app.add_typer(quarantines.app, name="quarantine")
    return topics.app


def _schema(app: typer.Typer) -> None:
    app.add_typer(_schemas(), name="schema")


@cache
def _schemas() -> typer.Typer:
    from fluvial.cli.schema import registry, schemas

    registry.add_to(schemas.app)
    return schemas.app


def _table(app: typer.Typer) -> None:
    app.add_typer(_tables(), name="table")


@cache
def _tables() -> typer.Typer:
    from fluvial.cli.run import adopt, verify
    from fluvial.cli.table import erase, explain, explain_row, table_replay, table_rows, tables

    for added in (table_rows, explain, explain_row, verify, adopt, erase, table_replay):
        added.add_to(tables.app)
    return tables.app


def _group(app: typer.Typer) -> None:
    from fluvial.cli.group import groups

    app.add_typer(groups.app, name="group")


def _cluster(app: typer.Typer) -> None:
    app.add_typer(_clusters(), name="cluster")


@cache
def _clusters() -> typer.Typer:
    from fluvial.cli.cluster import clusters
    from fluvial.cli.topic import configs

    clusters.app.add_typer(configs.app, name="config")
    return clusters.app


def _acl(app: typer.Typer) -> None:
    from fluvial.cli.access import acls

    app.add_typer(acls.app, name="acl")


def _user(app: typer.Typer) -> None:
    from fluvial.cli.access import users

    app.add_typer(users.app, name="user")


# In the order of the help.
BRANCHES: Mapping[str, Callable[[typer.Typer], None]] = {
    "init": _init,
    "up": _nodes,
    "down": _nodes,
    "status": _nodes,
    "run": _run,
    "sql": _sql,
    "serve": _serve,
    "ui": _ui,
    "demo": _demo,
    "certify": _certify,
    "version": _version,
    "topic": _topic,
    "schema": _schema,
    "table": _table,
    "group": _group,
    "cluster": _cluster,
    "acl": _acl,
    "user": _user,
}
