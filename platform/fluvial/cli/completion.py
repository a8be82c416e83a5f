"""Names that the shell completes: asked of the cluster, which has a moment to answer; without it there are none."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

TIMEOUT_SECONDS = 2.0


def topics(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a topic."""
    return _names(context, incomplete, lambda admin: admin.list_topics(timeout=TIMEOUT_SECONDS).topics)


def groups(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a consumer group."""

    def listed(admin: "AdminClient") -> Iterable[str]:
        found = admin.list_consumer_groups(request_timeout=TIMEOUT_SECONDS).result(TIMEOUT_SECONDS)
        return [group.group_id for group in found.valid]

    return _names(context, incomplete, listed)


def _names(context: typer.Context, incomplete: str, ask: "Callable[[AdminClient], Iterable[str]]") -> list[str]:
    from fluvial.cli.options import settings_of
    from fluvial.kafka.admin import admin_of

    try:
        named = context.params
        settings = settings_of(
            named.get("data_dir"), named.get("bootstrap_server"), command_config=named.get("command_config")
        )
        return sorted(name for name in ask(admin_of(settings.cluster)) if name.startswith(incomplete))
    except Exception:  # whatever it is, the shell shows no error at a key press
        return []
