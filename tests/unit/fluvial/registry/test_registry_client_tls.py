"""The client of a registry that is asked by TLS: whom it trusts, what it shows, and which file it names."""

import http.server
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluvial.errors import ConfigError
from fluvial.properties import Given, Properties
from fluvial.registry.client import RegistryClient
from fluvial.registry.endpoint import registry_properties
from fluvial.registry.errors import RegistryError
from tests.peers.secured_kafka import Authority


class NoSubjects(http.server.BaseHTTPRequestHandler):
    """Answers every request as a registry without subjects answers `GET /subjects`."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"[]")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"), "authority")


@pytest.fixture(scope="module")
def url(authority: Authority) -> Iterator[str]:
    """A registry that lets in who shows a certificate."""
    pair = authority.issue("registry")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.certificate)
    context.load_cert_chain(pair.certificate, pair.key)
    context.verify_mode = ssl.CERT_REQUIRED
    with http.server.HTTPServer(("127.0.0.1", 0), NoSubjects) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def given(**files: Path) -> Properties:
    """Properties of the names with dots for underlines, as they stand in `fluvial.toml`."""
    names = {name.replace("_", "."): path for name, path in files.items()}
    return registry_properties(
        {name: Given(str(path), f"fluvial.toml: registry.{name}") for name, path in names.items()}
    )


@pytest.mark.parametrize("in_one_file", [False, True])
def test_a_certificate_is_shown_with_its_key(url: str, authority: Authority, tmp_path: Path, in_one_file: bool) -> None:
    pair = authority.issue(f"client-{in_one_file}")
    shown = (
        given(ssl_ca_location=authority.certificate, ssl_certificate_location=pair.joined(tmp_path / "both.pem"))
        if in_one_file
        else given(
            ssl_ca_location=authority.certificate,
            ssl_certificate_location=pair.certificate,
            ssl_key_location=pair.key,
        )
    )
    with RegistryClient(url, properties=shown) as client:
        assert client.subjects() == []


def test_a_certificate_that_is_not_trusted(url: str, tmp_path: Path) -> None:
    stranger = given(ssl_ca_location=Authority(tmp_path, "stranger").certificate)
    with (
        RegistryClient(url, properties=stranger) as client,
        pytest.raises(RegistryError, match=r"not trusted.*ssl\.ca\.location of \[registry\]"),
    ):
        client.subjects()


@pytest.mark.parametrize("name", ["ssl_ca_location", "ssl_certificate_location"])
@pytest.mark.parametrize("text", [None, "no certificate"])
def test_a_file_that_is_no_certificate_is_named(tmp_path: Path, name: str, text: str | None) -> None:
    if text is not None:
        (tmp_path / "some.pem").write_text(text)
    dotted = name.replace("_", r"\.")
    with pytest.raises(ConfigError, match=rf"fluvial\.toml: registry\.{dotted}: .*name PEM files that can be read"):
        RegistryClient("https://127.0.0.1:1", properties=given(**{name: tmp_path / "some.pem"}))
