"""`fluvial cluster features`: the feature levels of a cluster, and how they are raised after an upgrade."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from fluvial.cli import terminal
from fluvial.cli.options import (
    AnswerFormat,
    BootstrapServer,
    CommandConfig,
    DataDir,
    Form,
    pairs,
    settings_of,
    with_cluster,
    with_json,
)
from fluvial.config import Settings

if TYPE_CHECKING:
    from fluvial.cluster.features import Feature

app = typer.Typer(
    help="See which levels of features the nodes support and the cluster is at; raise them after an upgrade.",
    invoke_without_command=True,
    rich_markup_mode=None,
)

Levels = Annotated[
    list[str] | None,
    typer.Option(
        "--feature", metavar="NAME=LEVEL", help="A feature and its level; may be given again.", show_default=False
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Ask the controller whether it can be, and change nothing.")]


@app.callback(epilog="Example:  fluvial cluster features")
@with_json
def features(
    context: typer.Context,
    *,
    answer_format: AnswerFormat = Form.TABLE,
    data_dir: DataDir = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
) -> None:
    """
    Show the feature levels that the nodes support, and the cluster's current ones.

    A rolling upgrade ends with `features upgrade`: until then every node can be downgraded to its old release.
    """
    if context.invoked_subcommand is None:
        _describe(settings_of(data_dir, bootstrap_server, command_config=command_config), answer_format)


@app.command(epilog="Example:  fluvial cluster features describe --format json")
@with_cluster
@with_json
def describe(*, settings: Settings, answer_format: AnswerFormat = Form.TABLE) -> None:
    """Show the feature levels that the nodes support, and the cluster's current ones."""
    _describe(settings, answer_format)


@app.command(epilog="Example:  fluvial cluster features upgrade --dry-run")
@with_cluster
def upgrade(
    *,
    settings: Settings,
    levels: Levels = None,
    release_version: Annotated[
        str | None,
        typer.Option(
            "--release-version",
            metavar="VERSION",
            help="The level of metadata.version by its name, such as 4.1.",
            show_default=False,
        ),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """
    Raise levels; without a name, metadata.version to the newest level that all brokers support.

    Run it when all nodes run the new release: afterwards no node can be downgraded to one without that level.
    """
    from fluvial.cluster.features import (
        UPGRADE,
        features_of,
        level_of_release,
        newest_metadata_level,
        update_features,
    )
    from fluvial.cluster.wire import ClusterLink
    from log_broker.core.cluster.features import METADATA_VERSION

    wanted = _levels(levels)
    if release_version is not None:
        wanted[METADATA_VERSION] = level_of_release(release_version)
    with ClusterLink(settings.cluster) as cluster:
        if not wanted:
            newest = newest_metadata_level(features_of(cluster))
            if newest is None:
                terminal.say(f"{METADATA_VERSION} is at the newest level that all brokers support; nothing to raise")
                return
            wanted[METADATA_VERSION] = newest
        update_features(cluster, wanted, UPGRADE, dry_run=dry_run)
    for name, level in wanted.items():
        terminal.say(f"{name} {'can be raised' if dry_run else 'was raised'} to {level}")


@app.command(epilog="Example:  fluvial cluster features downgrade --feature group.version=0")
@with_cluster
def downgrade(
    *,
    settings: Settings,
    levels: Levels = None,
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Also where that loses metadata, if the cluster can do such a thing.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Lower levels. metadata.version cannot be lowered: records of a level cannot be read below it."""
    from fluvial.cluster.features import SAFE_DOWNGRADE, UNSAFE_DOWNGRADE, update_features
    from fluvial.cluster.wire import ClusterLink

    wanted = _levels(levels)
    if not wanted:
        raise typer.BadParameter("--feature NAME=LEVEL: name the feature and the level to lower it to")
    with ClusterLink(settings.cluster) as cluster:
        update_features(cluster, wanted, UNSAFE_DOWNGRADE if unsafe else SAFE_DOWNGRADE, dry_run=dry_run)
    for name, level in wanted.items():
        terminal.say(f"{name} {'can be lowered' if dry_run else 'was lowered'} to {level}")


def _levels(words: list[str] | None) -> dict[str, int]:
    wanted = {}
    for name, text in pairs("--feature", words).items():
        if not text.isdigit():
            raise typer.BadParameter(f"--feature {name}={text}: a level is a number")
        wanted[name] = int(text)
    return wanted


def _describe(settings: Settings, answer_format: Form) -> None:
    from fluvial.cluster.features import features_of
    from fluvial.cluster.wire import ClusterLink
    from log_broker.core.cluster.features import METADATA_VERSION

    with ClusterLink(settings.cluster) as cluster:
        found = features_of(cluster)
    if answer_format is Form.JSON:
        features = [
            {
                "name": each.name,
                "level": each.level,
                "supported": {str(node_id): list(levels) for node_id, levels in each.supported.items()},
            }
            for each in found.by_name.values()
        ]
        terminal.answer(json.dumps({"epoch": found.epoch, "features": features}, indent=2))
        return
    rows = [(each.name, _level_text(each.name, each.level), *_supported(each)) for each in found.by_name.values()]
    # Where all run the same release, the last column would be empty.
    columns = ("feature", "level", "supported by all", "differs")[: 4 if any(row[-1] for row in rows) else 3]
    terminal.table(columns, (row[: len(columns)] for row in rows))
    metadata = found.by_name.get(METADATA_VERSION)
    if metadata is not None and metadata.level < metadata.highest:
        terminal.say(f"{METADATA_VERSION} can be raised to {metadata.highest}: `fluvial cluster features upgrade`")


def _supported(feature: "Feature") -> tuple[str, str]:
    """Return the levels that all nodes support, and those of each node where they are not the same."""
    common = (feature.lowest, feature.highest)
    each = {node_id: levels for node_id, levels in feature.supported.items() if levels != common}
    differs = "; ".join(f"node {node_id}: {_range_text(levels)}" for node_id, levels in each.items())
    return _range_text(common), differs


def _range_text(levels: tuple[int, int]) -> str:
    lowest, highest = levels
    if lowest > highest:
        return "none"
    return str(lowest) if lowest == highest else f"{lowest}-{highest}"


def _level_text(name: str, level: int) -> str:
    from log_broker.core.cluster.features import METADATA_LEVELS, METADATA_VERSION

    known = METADATA_LEVELS.get(level) if name == METADATA_VERSION else None
    return f"{level} ({known})" if known else str(level)
