"""
The passwords with which the producers of a laptop's contracts own their subjects in the local platform's registry.

They are made when a producer first registers and kept in `<data directory>/registry-credentials.json`, which only its
owner may read. A producer whose `owner.toml` names credentials has those.
"""

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fluvial.errors import ConfigError
from fluvial.local.state import Platform, client_properties
from fluvial.registry.contracts import Contract, Passwords, declared_password

FILE = "registry-credentials.json"
PASSWORD_BYTES = 24
MODE = 0o600


class LocalCredentials:
    """The passwords that the platform in `data_dir` keeps for its user."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self.path = data_dir / FILE

    def find(self, producer: str) -> str | None:
        """Return a producer's password, None when none was made; raises ConfigError for a file that is damaged."""
        return self._read().get(producer)

    def ensure(self, producer: str) -> str:
        """Return a producer's password, a new one when it has none."""
        known = self.find(producer)
        if known is not None:
            return known
        with self._locked():
            passwords = self._read()
            password = passwords.get(producer)
            if password is None:
                password = passwords[producer] = secrets.token_urlsafe(PASSWORD_BYTES)
                self._write(passwords)
        return password

    def _read(self) -> dict[str, str]:
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            return {str(name): str(password) for name, password in found["producers"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{self.path}: cannot be read as passwords of producers: {error}") from error

    def _write(self, passwords: dict[str, str]) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        # Made with its mode, so that nobody else can open it in between.
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE), "w", encoding="utf-8") as file:
            json.dump({"producers": passwords}, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        folder = os.open(self._data_dir, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)


def local_credentials(data_dir: Path, registry_url: str) -> LocalCredentials | None:
    """
    Return the passwords of the local platform in `data_dir`, None when `registry_url` is not its registry.

    A platform that is secured has users, and keeps no other passwords.
    """
    platform = Platform.load(data_dir)
    if platform is None or client_properties(data_dir) is not None:
        return None
    asked = {each.strip().rstrip("/") for each in registry_url.split(",")}
    return LocalCredentials(data_dir) if asked <= set(platform.registry_url.split(",")) else None


def passwords_for(data_dir: Path, registry_url: str) -> Passwords:
    """
    Return how `register_all` finds the password of a contract's producer.

    It is the one that `owner.toml` refers to; in the registry of the local platform one is made where it names none.
    """
    kept = local_credentials(data_dir, registry_url)

    def password_of(contract: Contract) -> str | None:
        declared = declared_password(contract)
        return declared if declared is not None or kept is None else kept.ensure(contract.producer)

    return password_of
