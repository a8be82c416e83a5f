"""`fluvial cluster`: the cluster's state, replica assignment and leadership."""

import typer

from fluvial.cli.cluster import (
    cluster_doctor,
    cluster_features,
    cluster_moves,
    cluster_nodes,
    cluster_status,
    elections,
    events,
)

app = typer.Typer(
    help="Show the cluster's state; reassign partitions, elect leaders, raise feature levels.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("status", epilog="Example:  fluvial cluster status")(cluster_status.status)
app.command("move", epilog="Example:  fluvial cluster move orders:0 --to 1,2,3 --throttle 50M --wait")(
    cluster_moves.move
)
app.command("moves", epilog="Example:  fluvial cluster moves --wait")(cluster_moves.moves)
app.command("reassign", epilog="Example:  fluvial cluster reassign --brokers 0,1,2,3 --execute")(cluster_moves.reassign)
app.command("elect", epilog="Example:  fluvial cluster elect orders:0,1 payments")(elections.elect_leaders)
app.command("remove", epilog="Example:  fluvial cluster remove 3 --execute")(cluster_nodes.remove)
events.add_to(app)
app.add_typer(cluster_features.app, name="features")
app.command("doctor", epilog="Example:  fluvial cluster doctor --client producer.properties")(cluster_doctor.doctor)
