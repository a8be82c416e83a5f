"""`fluvial user`: the users that sign in to a cluster with a password, by SCRAM (RFC 5802)."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluvial.cli import terminal
from fluvial.cli.options import AnswerFormat, Form, with_cluster
from fluvial.config import Settings

if TYPE_CHECKING:
    from fluvial.kafka.recording_admin import RecordingAdmin

app = typer.Typer(
    help="List, add and remove users; change passwords.",
    epilog="Example:  fluvial user list",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Mechanism(StrEnum):
    """The mechanisms by which users sign in."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"


Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.", show_default=False)]
By = Annotated[Mechanism, typer.Option("--mechanism", help="How the user signs in.")]
Iterations = Annotated[
    int, typer.Option("--iterations", min=4096, max=16_384, help="How often the password is hashed.")
]
Credentials = Annotated[
    str | None,
    typer.Option(
        "--credentials",
        metavar="REFERENCE",
        help="The password: env:NAME or file:PATH (default: it is asked for).",
        show_default=False,
    ),
]


@app.command("list", epilog="Example:  fluvial user list --format json")
@with_cluster
def list_users(answer_format: AnswerFormat = Form.TABLE, *, settings: Settings) -> None:
    """List the users and how they sign in."""
    rows = [
        {"user": name, "mechanism": mechanism, "iterations": iterations}
        for name, credentials in sorted(_users(_admin(settings)).items())
        for mechanism, iterations in sorted(credentials.items())
    ]
    if answer_format is Form.JSON:
        terminal.answer(json.dumps(rows))
        return
    columns = ("user", "mechanism", "iterations")
    terminal.table(columns, ([row[column] for column in columns] for row in rows))


@app.command(epilog="Example:  fluvial user add ada --credentials env:ADA_PASSWORD")
@with_cluster
def add(
    name: Name,
    mechanism: By = Mechanism.SHA_512,
    iterations: Iterations = 8192,
    credentials: Credentials = None,
    *,
    settings: Settings,
) -> None:
    """Add a user. What it may do is for `fluvial acl`."""
    from fluvial.kafka.admin import ClusterError

    admin = _admin(settings)
    if name in _users(admin):
        raise ClusterError(f"user {name!r} is there already; `fluvial user set-password {name}` changes its password")
    _set_password(admin, name, _password(credentials), {mechanism: iterations})
    terminal.say(f"user {name} added, who signs in by {mechanism.value}")


@app.command("set-password", epilog="Example:  fluvial user set-password ada")
@with_cluster
def set_password(name: Name, credentials: Credentials = None, *, settings: Settings) -> None:
    """Change a user's password, for all mechanisms by which the user signs in."""
    admin = _admin(settings)
    known = _known(admin, name)
    _set_password(admin, name, _password(credentials), {Mechanism(each): count for each, count in known.items()})
    terminal.say(f"user {name} has another password now")


@app.command(epilog="Example:  fluvial user remove ada")
@with_cluster
def remove(name: Name, *, settings: Settings) -> None:
    """Remove a user, who cannot sign in any more. ACLs that name the user stay."""
    from confluent_kafka.admin import UserScramCredentialDeletion

    admin = _admin(settings)
    for mechanism in _known(admin, name):
        _alter(admin, name, UserScramCredentialDeletion(name, _of(Mechanism(mechanism))), "remove")
    terminal.say(f"user {name} removed; `fluvial acl list --principal User:{name}` shows what is left of the rights")


def _admin(settings: Settings) -> "RecordingAdmin":
    from fluvial.kafka.admin import admin_of, describe_cluster

    admin = admin_of(settings.cluster)
    describe_cluster(settings, admin)
    return admin


def _users(admin: "RecordingAdmin") -> dict[str, dict[str, int]]:
    """Return the iterations of each mechanism of each user."""
    from fluvial.kafka.admin import TIMEOUT_SECONDS, cluster_errors

    with cluster_errors("list the users"):
        found = admin.describe_user_scram_credentials(request_timeout=TIMEOUT_SECONDS).result()
    return {
        name: {each.mechanism.name.replace("_", "-"): each.iterations for each in description.scram_credential_infos}
        for name, description in found.items()
    }


def _known(admin: "RecordingAdmin", name: str) -> dict[str, int]:
    from fluvial.kafka.admin import ClusterError

    known = _users(admin)
    if name not in known:
        raise ClusterError(f"no user {name!r} in the cluster; `fluvial user list` shows those that there are")
    return known[name]


def _password(reference: str | None) -> str:
    from fluvial.registry.credentials import read_secret

    if reference is not None:
        return read_secret(reference, folder=Path())
    if not sys.stdin.isatty():
        raise typer.BadParameter("there is no terminal to ask for a password: give --credentials env:NAME or file:PATH")
    password: str = typer.prompt("password", hide_input=True, confirmation_prompt=True, err=True)
    return password


def _set_password(admin: "RecordingAdmin", name: str, password: str, mechanisms: dict[Mechanism, int]) -> None:
    from confluent_kafka.admin import ScramCredentialInfo, UserScramCredentialUpsertion

    for mechanism, iterations in mechanisms.items():
        info = ScramCredentialInfo(_of(mechanism), iterations)
        _alter(admin, name, UserScramCredentialUpsertion(name, info, password.encode()), "set the password of")


def _alter(admin: "RecordingAdmin", name: str, alteration: Any, doing: str) -> None:
    """Send one alteration: a cluster takes no two for one user in a request."""
    from fluvial.kafka.admin import TIMEOUT_SECONDS, cluster_errors

    (future,) = admin.alter_user_scram_credentials([alteration], request_timeout=TIMEOUT_SECONDS).values()
    with cluster_errors(f"{doing} user {name!r}"):
        future.result()


def _of(mechanism: Mechanism) -> Any:
    from confluent_kafka.admin import ScramMechanism

    return ScramMechanism[mechanism.value.replace("-", "_")]
