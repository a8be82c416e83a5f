"""
The tree of commands. A command line imports the one branch that it is about, and help of them all imports none: all of
them take half a second.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated

import typer

from fluvial.cli.old_names import NEW_NAMES, Tree
from fluvial.cli.profile import FLAG, HELP, choose

DEBUG = "FLUVIAL_DEBUG"
COMPLETING = "_FLUVIAL_COMPLETE"
"""The variable by which the shell asks for the words that may follow; those before are no arguments then."""


@dataclass(frozen=True, slots=True)
class Branch:
    """What adds a command or group to the tree, and its line in the help of them all."""

    add: Callable[[typer.Typer], None]
    summary: str


def whole() -> typer.Typer:
    """Return all commands, for completion and whatever is about no known one."""
    return _app(tuple(dict.fromkeys(each.add for each in BRANCHES.values())))


@cache
def names_only() -> typer.Typer:
    """Return the names with their summaries, for the help of them all and for a name that is none."""
    app = _root()
    for name, each in BRANCHES.items():
        app.command(name, help=each.summary)(lambda: None)
    return app


def branch_of(words: Sequence[str]) -> typer.Typer:
    """Return as much of the tree as a command line needs."""
    if COMPLETING in os.environ:
        return whole()
    left = iter(words)
    for word in left:
        if word == FLAG:
            next(left, None)
        elif not word.startswith("-"):
            branch = BRANCHES.get(NEW_NAMES.get(word, (word,))[0])
            if branch is None:
                return names_only()
            return _app((LEAVES.get((word, next(left, "")), branch.add),))
        elif word == "--help":
            break
        elif word != "--debug" and not word.startswith(f"{FLAG}="):
            return whole()
    return names_only()


@cache
def _app(branches: tuple[Callable[[typer.Typer], None], ...]) -> typer.Typer:
    app = _root()
    for add in branches:
        add(app)
    return app


def _root() -> typer.Typer:
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
    from fluvial.cli.topic import consume, produce, quarantines, topic_changes, topic_repair, topics

    group = _topics(app)
    for added in (topics, produce, consume, topic_changes, topic_repair):
        added.add_to(group)
    group.add_typer(quarantines.app, name="quarantine")


def _topic_itself(app: typer.Typer) -> None:
    from fluvial.cli.topic import topics

    topics.add_to(_topics(app))


def _topics(app: typer.Typer) -> typer.Typer:
    group = typer.Typer(help=BRANCHES["topic"].summary, no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(group, name="topic")
    return group


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
    from fluvial.cli.table import erase, explain, explain_row, register, snippets, table_replay, table_rows, tables

    for added in (table_rows, snippets, register, explain, explain_row, verify, adopt, erase, table_replay):
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
BRANCHES: Mapping[str, Branch] = {
    "init": Branch(
        _init, "Create a small project that runs as it is: a contract, a topic, a table, a check, tests and a producer."
    ),
    "up": Branch(
        _nodes, "Start the local platform: brokers and the schema registry on each, their data in one folder."
    ),
    "down": Branch(_nodes, "Stop every node of the local platform and its server, or one node; its data stays."),
    "status": Branch(
        _nodes,
        "Show which nodes of the local platform are up, those that answer on their port, and which disks failed.",
    ),
    "run": Branch(_run, "Materialize tables of the project from the log, inputs before the tables that read them."),
    "sql": Branch(
        _sql, "Query the tables in Spark SQL: history.*, compacted.*, state.*, marts.*, late.*, quarantine.*."
    ),
    "serve": Branch(
        _serve,
        "Serve rows by their keys, and queries, over HTTP until Ctrl-C: GET /tables/state.customers/ada, POST /sql.",
    ),
    "ui": Branch(_ui, "Serve the Dagster page of the project until Ctrl-C."),
    "demo": Branch(_demo, "Run the main job on the 336,776 flights that left New York in 2013, and show the answers."),
    "certify": Branch(
        _certify,
        "Kill, repeat, cut and double what writes to a sink, and say what the sink promises, with the evidence.",
    ),
    "version": Branch(
        _version,
        "Print the version of fluvial and of what it stands on: Python, compiled libraries, Spark, its jars, Java.",
    ),
    "topic": Branch(_topic, "Create, list, describe, change and delete topics."),
    "schema": Branch(_schema, "Register, check, compare and hand over schemas."),
    "table": Branch(_table, "List, show and compare tables."),
    "group": Branch(_group, "List, describe, reset and delete consumer groups."),
    "cluster": Branch(_cluster, "Show the cluster's state; reassign partitions, elect leaders, raise feature levels."),
    "acl": Branch(_acl, "List, add and remove access control lists."),
    "user": Branch(_user, "List, add and remove users; change passwords."),
}

# Of a large group, the commands that need little of it.
LEAVES: Mapping[tuple[str, str], Callable[[typer.Typer], None]] = {
    ("topic", name): _topic_itself for name in ("create", "list", "describe", "delete")
}
