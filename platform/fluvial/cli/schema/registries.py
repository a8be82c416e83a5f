"""On whose behalf a command asks the schema registry."""

from typing import TYPE_CHECKING

from fluvial.config import Settings

if TYPE_CHECKING:
    from fluvial.registry.client import RegistryClient


def as_owner(client: "RegistryClient", settings: Settings, subject: str) -> "RegistryClient":
    """
    Return the registry as the owner of `subject` asks it, where the local platform keeps the owner's password.

    Whoever said who asks goes on being who asks.
    """
    from fluvial.local.credentials import local_credentials

    if client.name is not None:
        return client
    kept = local_credentials(settings.data_dir, settings.registry_url)
    owned = client.owner(subject) if kept is not None else None
    if kept is None or owned is None or owned["owner"] is None:
        return client
    password = kept.find(owned["owner"])
    return client if password is None else client.acting_as(owned["owner"], password)
