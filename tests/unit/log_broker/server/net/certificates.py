"""A certificate authority for tests, and certificates of it, as PEM files."""

from pathlib import Path

from fluvial.local import certificates


class Authority:
    """Signs certificates into `folder`; its own is `ca.pem`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._authority = certificates.Authority(f"authority {folder.name}", days=1)
        self.path = folder / "ca.pem"
        self.path.write_bytes(self._authority.certificate)

    def issue(self, name: str, *, host: str = "127.0.0.1", password: str = "") -> Path:
        """Write certificate and key into one file, in place of what stood there."""
        subject = certificates.common_name(name, country="DE")
        path = self.folder / f"{name}.pem"
        path.write_bytes(b"".join(self._authority.issue(subject, ("localhost", host), password)))
        return path
