"""The schema registry as the commands ask it, and on whose behalf."""

import os
from typing import TYPE_CHECKING

from fluvial.config import Settings
from fluvial.errors import ConfigError

if TYPE_CHECKING:
    from fluvial.registry.client import RegistryClient

USER_INFO = "FLUVIAL_REGISTRY_USER_INFO"


def open_registry(settings: Settings) -> "RegistryClient":
    """
    Return a client of the registry that `settings` name.

    Who asks is said by `FLUVIAL_REGISTRY_USER_INFO`, a name and a password with a colon between, or by the URL.
    """
    from fluvial.registry.client import RegistryClient

    user_info = os.environ.get(USER_INFO)
    if not user_info:
        return RegistryClient(settings.registry_url)
    name, colon, password = user_info.partition(":")
    if not colon or not name:
        raise ConfigError(f"{USER_INFO}: write NAME:PASSWORD, a producer and its password in the registry")
    return RegistryClient(settings.registry_url, (name, password))


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
